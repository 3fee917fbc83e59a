"""One call between its two ends: requests up, responses down, and what passes beside them.

Made by a client's call once its channel is connected. Owns the two pipes and carries headers, statuses and resets over the same
lines, in order with the messages of the call. The two ends never see each other: each is called when something reaches it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol, TypeAlias

import grpc

from virtual.charge import control
from virtual.connection import Connection
from virtual.line import LineFlow
from virtual.link import Flow
from virtual.pipe import Pipe


class Metadatum(NamedTuple):
    key: str
    value: str | bytes


MetadataTuple: TypeAlias = tuple[Metadatum, ...]

_HEADERS = control("headers", 100)
_INITIAL = control("initial metadata", 20)
_STATUS = control("status", 30)
_END = control("end of requests", 0)
_RESET = control("reset", 0)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a call ended."""

    code: grpc.StatusCode
    details: str = ""
    trailing: MetadataTuple = ()


@dataclass(frozen=True, slots=True)
class Headers:
    method: str
    metadata: MetadataTuple
    timeout_s: float | None  # what was left of the deadline when they were sent


class ClientEnd(Protocol):
    def initial_metadata_came(self, metadata: MetadataTuple) -> None: ...

    def outcome_came(self, outcome: Outcome) -> None:
        """The server's word, behind all its messages."""

    def lost(self, outcome: Outcome) -> None:
        """The call is over, whatever has come of it."""


class ServerEnd(Protocol):
    def gone(self) -> None:
        """The client has let go of the call, or was lost."""


class Stream:
    def __init__(self, connection: Connection, headers: Headers, client: ClientEnd) -> None:
        self.headers = headers
        self.peer = connection.route.client_name
        self._connection = connection
        self._client: ClientEnd | None = client
        self._server: ServerEnd | None = None
        self._up, self._down = connection.route.up, connection.route.down
        self._up_flow: LineFlow = Flow((connection, "up"))
        self._down_flow: LineFlow = Flow((connection, "down"))
        self.requests = Pipe(self._up, self._up_flow)
        self.responses = Pipe(self._down, self._down_flow, connection.route.window_bytes)
        connection.add(self)

    def too_large(self, end: str, data: bytes) -> Outcome | None:
        """How a message above the bound ends the call: it is refused where it is sent."""
        most = self._connection.max_message_bytes
        if len(data) <= most:
            return None
        return Outcome(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{end}: Sent message larger than max ({len(data)} vs. {most})")

    # ── the client's end ──

    def begin(self) -> None:
        self._up.send(self._up_flow, _HEADERS, self._headers_came)

    def end_requests(self) -> None:
        self._up.send(self._up_flow, _END, self.requests.end)

    def client_left(self) -> None:
        """The call is over for the client, and the server knows it."""
        self._client = None
        self.responses.abandon()  # first: who waits for a response learns the cause, while a failed write hides it
        self.requests.close()
        self._forget_if_over()

    def reset(self) -> None:
        """The call is over for the client, and the server must hear of it."""
        self.client_left()
        if not self._connection.broken:
            self._up.discard(self._up_flow)
            self._up.send(self._up_flow, _RESET, self._reset_came)

    # ── the server's end ──

    def accepted_by(self, server: ServerEnd) -> None:
        self._server = server

    def send_initial_metadata(self, metadata: MetadataTuple) -> None:
        self._down.send(self._down_flow, _INITIAL, partial(self._initial_metadata_came, metadata))

    def send_outcome(self, outcome: Outcome) -> None:
        """The server's last word. What the client still sends is thrown away."""
        self.requests.drop()
        self._down.send(self._down_flow, _STATUS, partial(self._outcome_came, outcome))

    def server_left(self) -> None:
        self._server = None
        self._forget_if_over()

    # ── the connection ──

    def broken(self, why: str) -> None:
        """Both ends lose the call at once."""
        self._up.discard(self._up_flow)
        self._down.discard(self._down_flow)
        if self._client is not None:
            self._client.lost(Outcome(grpc.StatusCode.UNAVAILABLE, why))
        if self._server is not None:
            self._server.gone()

    # ── arrivals ──

    def _headers_came(self) -> None:
        if not self._connection.broken:
            self._connection.accept(self)

    def _reset_came(self) -> None:
        if self._server is not None and not self._connection.broken:
            self._server.gone()

    def _initial_metadata_came(self, metadata: MetadataTuple) -> None:
        if self._client is not None:
            self._client.initial_metadata_came(metadata)

    def _outcome_came(self, outcome: Outcome) -> None:
        if self._client is not None:
            self._client.outcome_came(outcome)

    def _forget_if_over(self) -> None:
        if self._client is None and self._server is None:
            self._connection.remove(self)
