"""A channel's way to a connection: dialled when a call first needs it, dialled again when it is lost.

Called by `channel` and its calls. Owns gRPC's connectivity state, the calls that wait for a connection, and the pause after a
failed attempt.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from grpc import ChannelConnectivity

from virtual.connection import Connection, Opener, TransportSettings


class WaitingCall(Protocol):
    wait_for_ready: bool

    def connected(self, connection: Connection) -> None: ...

    def unreachable(self, why: str) -> None: ...


class Dialer:
    def __init__(self, address: str, connect: Callable[[Opener], Connection | None], settings: TransportSettings) -> None:
        """`connect` starts a connection; None where nobody knows the address."""
        self.state = ChannelConnectivity.IDLE
        self._loop = asyncio.get_running_loop()
        self._address = address
        self._connect = connect
        self._settings = settings
        self._connection: Connection | None = None  # in the states CONNECTING and READY
        self._waiting: dict[WaitingCall, None] = {}
        self._timer: asyncio.TimerHandle | None = None  # of the attempt, or of the pause after it
        self._backoff_s = settings.first_backoff_s
        self._why = ""  # the last attempt failed
        self._watchers: list[asyncio.Future[None]] = []

    def start(self, call: WaitingCall) -> None:
        """Have `call.connected` called, at once if there is a connection, or `call.unreachable`."""
        if self.state is ChannelConnectivity.READY and self._connection is not None:
            call.connected(self._connection)
        elif self.state is ChannelConnectivity.TRANSIENT_FAILURE and not call.wait_for_ready:
            self._loop.call_soon(call.unreachable, self._why)
        else:
            self._waiting[call] = None
            self.wake()

    def forget(self, call: WaitingCall) -> None:
        self._waiting.pop(call, None)

    def wake(self) -> None:
        """Dial, unless that is under way, done, or has just failed."""
        if self.state is ChannelConnectivity.IDLE:
            self._dial()

    def close(self) -> None:
        connection, self._connection = self._connection, None
        self._set_timer(None)
        self._set_state(ChannelConnectivity.SHUTDOWN)
        if connection is not None:
            connection.hang_up()

    async def state_changed(self, last: ChannelConnectivity) -> None:
        while self.state is last:
            watcher = self._loop.create_future()
            self._watchers.append(watcher)
            await watcher

    # ── the connection ──

    def connected(self, connection: Connection) -> None:
        if connection is not self._connection:
            return
        self._set_timer(None)
        self._backoff_s = self._settings.first_backoff_s
        self._set_state(ChannelConnectivity.READY)
        waiting, self._waiting = tuple(self._waiting), {}
        for call in waiting:
            call.connected(connection)

    def draining(self, connection: Connection) -> None:
        """Its calls go on, new ones need another connection."""
        if connection is self._connection:
            self._connection = None
            self._set_state(ChannelConnectivity.IDLE)

    def lost(self, connection: Connection, why: str) -> None:
        if connection is not self._connection:
            return
        self._connection = None
        if self.state is ChannelConnectivity.CONNECTING:
            self._failed(why)
        else:
            self._set_state(ChannelConnectivity.IDLE)

    def _dial(self) -> None:
        self._set_state(ChannelConnectivity.CONNECTING)
        connection = self._connection = self._connect(self)
        if connection is None:
            self._failed(f"nobody knows the host of {self._address}")
            return
        self._set_timer(self._loop.call_later(self._settings.connect_timeout_s, connection.break_, "connection timed out"))
        connection.dial()

    def _failed(self, why: str) -> None:
        self._why = f"failed to connect to all addresses; last error: UNKNOWN: {self._address}: {why}"
        self._set_state(ChannelConnectivity.TRANSIENT_FAILURE)
        self._set_timer(self._loop.call_later(self._backoff_s, self._rested))
        self._backoff_s = min(self._backoff_s * self._settings.backoff_growth, self._settings.max_backoff_s)
        for call in tuple(self._waiting):
            if not call.wait_for_ready:
                del self._waiting[call]
                self._loop.call_soon(call.unreachable, self._why)

    def _rested(self) -> None:
        self._set_timer(None)
        self._set_state(ChannelConnectivity.IDLE)
        if self._waiting:
            self._dial()

    def _set_timer(self, timer: asyncio.TimerHandle | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = timer

    def _set_state(self, state: ChannelConnectivity) -> None:
        self.state = state
        watchers, self._watchers = self._watchers, []
        for watcher in watchers:
            if not watcher.done():
                watcher.set_result(None)
