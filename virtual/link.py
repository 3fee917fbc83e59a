"""What a link between two sites does to messages: a model without I/O or clock.

Called by `line`, which delivers messages by it. One `Direction` is one way of a link, shared by every call that crosses it. Its
settings are those of the WAN emulator, which does the same to the bytes of real connections:

    offer ──► one queue per call, served in turns ──► serialised at `rate` ──► on its way for rtt/2 + jitter ──► advance

Calls take turns of QUANTUM_BYTES (deficit round robin, Shreedhar and Varghese 1995), so that a token never waits behind a
neighbour's megabyte. A call that is alone sends on without turns: the piece on the line is cut when another call comes up, which
gives the same times for one event a message instead of one a quantum.

Loss is seen as TCP shows it: the connection's messages stall for one round trip, those of others do not. A black hole holds what
is under way, and lets it go on when it ends.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import deque
from dataclasses import dataclass, field
from random import Random
from typing import Generic, TypeVar

from wan.link import PACKET_BYTES, LinkSettings, Outage

QUANTUM_BYTES = 64 << 10

ItemT = TypeVar("ItemT")


@dataclass(slots=True)
class _Message(Generic[ItemT]):
    item: ItemT
    size: int
    left_bytes: float  # not on the line yet


@dataclass(slots=True, eq=False)
class Flow(Generic[ItemT]):
    """The messages of one call in one direction, in order. Calls of one `connection` stall together when a packet is lost."""

    connection: object  # hashable
    waiting: deque[_Message[ItemT]] = field(default_factory=deque)


@dataclass(slots=True)
class _Piece:
    """What is being put on the line: of the first message of the first flow."""

    began_s: float
    size: float

    def ends_s(self, bytes_per_s: float) -> float:
        return self.began_s + self.size / bytes_per_s


class Direction(Generic[ItemT]):
    """One way of a link. Times are seconds on any clock that does not go back; `random` decides jitter and loss."""

    def __init__(self, settings: LinkSettings, random: Random) -> None:
        self._settings = settings
        self._random = random
        self._turns: deque[Flow[ItemT]] = deque()  # flows with something to send, the one whose turn it is first
        self._turn_bytes = 0.0  # what is left of the turn; less than nothing where the flow was alone
        self._piece: _Piece | None = None  # None where nothing is to be sent, or a black hole keeps it
        self._on_way: list[tuple[float, int, ItemT]] = []  # heap by arrival, then order of leaving
        self._order = itertools.count()
        self._last_arrival_s = -math.inf
        self._stalled_until_s: dict[object, float] = {}  # by connection

    @property
    def settings(self) -> LinkSettings:
        return self._settings

    def offer(self, flow: Flow[ItemT], item: ItemT, size: int, now_s: float) -> None:
        """Queue a message of `size` bytes behind those of its flow."""
        self._serve(now_s)
        flow.waiting.append(_Message(item, size, size))
        if len(flow.waiting) > 1:
            return
        self._turns.append(flow)
        if len(self._turns) == 1:
            self._turn_bytes = QUANTUM_BYTES
            self._start(now_s)
            self._serve(now_s)  # an endless rate keeps nothing
        elif len(self._turns) == 2:
            self._cut(now_s)

    def discard(self, flow: Flow[ItemT], now_s: float) -> None:
        """Forget what a flow has not sent; what is on its way arrives."""
        self._serve(now_s)
        flow.waiting.clear()
        if not self._turns or flow not in self._turns:
            return
        first = self._turns[0] is flow
        self._turns.remove(flow)
        if first:
            self._turn_bytes = QUANTUM_BYTES
            self._start(now_s)
            self._serve(now_s)

    def advance(self, now_s: float) -> list[ItemT]:
        """Everything that has arrived by `now_s` and was not given before, in the order of arrival."""
        self._serve(now_s)
        arrived: list[ItemT] = []
        if self._frozen:
            return arrived
        while self._on_way and self._on_way[0][0] <= now_s:
            arrived.append(heapq.heappop(self._on_way)[2])
        if self._stalled_until_s:
            self._stalled_until_s = {one: end_s for one, end_s in self._stalled_until_s.items() if end_s > now_s}
        return arrived

    def next_s(self) -> float | None:
        """The earliest time at which `advance` can have something to give; None while nothing moves."""
        if self._frozen:
            return None
        next_s = self._on_way[0][0] if self._on_way else math.inf
        if self._piece is not None:
            # That it has left matters to nobody before it may arrive: one event a message, not two.
            next_s = min(next_s, self._piece.ends_s(self._settings.bytes_per_s) + self._settings.one_way_s)
        return None if next_s == math.inf else next_s

    def configure(self, settings: LinkSettings, now_s: float) -> None:
        """Change the link from `now_s` on: what waits leaves at the new rate, what is on its way is not hurried."""
        self._serve(now_s)
        if self._piece is not None:
            self._account(self._sent_bytes(self._piece, now_s))
        self._settings = settings
        self._start(now_s)
        self._serve(now_s)

    @property
    def _frozen(self) -> bool:
        return self._settings.outage is Outage.BLACK_HOLE

    def _start(self, at_s: float) -> None:
        """Begin the next piece: the rest of the turn, or of the message where no one else waits."""
        self._piece = None
        if not self._turns or self._frozen:
            return
        left = self._turns[0].waiting[0].left_bytes
        self._piece = _Piece(at_s, left if len(self._turns) == 1 else min(left, self._turn_bytes))

    def _serve(self, now_s: float) -> None:
        """Let pieces that have ended by `now_s` go."""
        while self._piece is not None and (end_s := self._piece.ends_s(self._settings.bytes_per_s)) <= now_s:
            self._account(self._piece.size)
            flow = self._turns[0]
            if flow.waiting[0].left_bytes <= 0:
                self._depart(flow, flow.waiting.popleft(), end_s)
            if not flow.waiting:
                self._turns.popleft()
                self._turn_bytes = QUANTUM_BYTES
            elif self._turn_bytes <= 0:
                self._turns.rotate(-1)
                self._turn_bytes = QUANTUM_BYTES
            self._start(end_s)

    def _account(self, sent_bytes: float) -> None:
        self._turns[0].waiting[0].left_bytes -= sent_bytes
        self._turn_bytes -= sent_bytes

    def _cut(self, now_s: float) -> None:
        """Another flow has come up: end the piece with the quantum that is on the line, and the turn with it."""
        piece = self._piece
        if piece is None:
            self._turn_bytes = QUANTUM_BYTES
            return
        quanta = max(1, math.ceil(self._sent_bytes(piece, now_s) / QUANTUM_BYTES))
        piece.size = min(piece.size, quanta * QUANTUM_BYTES)
        self._turn_bytes = piece.size

    def _sent_bytes(self, piece: _Piece, now_s: float) -> float:
        return min((now_s - piece.began_s) * self._settings.bytes_per_s, piece.size)

    def _depart(self, flow: Flow[ItemT], message: _Message[ItemT], left_s: float) -> None:
        settings = self._settings
        late_s = self._random.uniform(0, settings.jitter_ms) / 1000 if settings.jitter_ms else 0.0
        self._last_arrival_s = max(self._last_arrival_s, left_s + settings.one_way_s + late_s)
        stall_s = settings.rtt_ms / 1000 if self._loses(message) else 0.0
        arrival_s = max(self._last_arrival_s + stall_s, self._stalled_until_s.get(flow.connection, -math.inf))
        if stall_s:
            self._stalled_until_s[flow.connection] = arrival_s
        heapq.heappush(self._on_way, (arrival_s, next(self._order), message.item))

    def _loses(self, message: _Message[ItemT]) -> bool:
        if not self._settings.loss:
            return False
        packets = max(1, math.ceil(message.size / PACKET_BYTES))
        return self._random.random() < 1 - (1 - self._settings.loss) ** packets
