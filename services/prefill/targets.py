"""Channels to the decoders that KV is sent to: one per address, kept while it is of use.

Used by the worker for every transfer. Owns the channels and nothing else is ever sent over them, so bulk never delays tokens. A
channel that nobody has used for a while is closed; one whose peer was lost is not used again, because a restarted peer would be
found only after gRPC's back-off.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import grpc.aio

from pdd.rpc.channel import OpenChannel, open_channel
from pdd.transfer.base import TransferLost

IDLE_S = 60.0  # without a transfer, after which a channel is closed


@dataclass(slots=True)
class _Open:
    channel: grpc.aio.Channel
    users: int = 0
    idle_since_s: float = 0.0


class TargetChannels:
    """An async context manager; leaving closes every channel, and with it what is still under way on it."""

    def __init__(self, dial: OpenChannel = open_channel, idle_s: float = IDLE_S) -> None:
        self._dial = dial
        self._idle_s = idle_s
        self._open: dict[str, _Open] = {}
        self._tasks = asyncio.TaskGroup()

    def __len__(self) -> int:
        return len(self._open)

    @asynccontextmanager
    async def use(self, address: str) -> AsyncIterator[grpc.aio.Channel]:
        """The channel to `address`, for one transfer. A TransferLost that passes through here discards it."""
        entry = self._open.get(address) or self._add(address)
        entry.users += 1
        try:
            yield entry.channel
        except TransferLost:
            if self._open.get(address) is entry:
                del self._open[address]
            raise
        finally:
            entry.users -= 1
            entry.idle_since_s = asyncio.get_running_loop().time()
            if entry.users == 0 and self._open.get(address) is not entry:
                await entry.channel.close()

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        self._sweeping = self._tasks.create_task(self._sweep(), name="target channels")
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._sweeping.cancel()
        await self._tasks.__aexit__(kind, error, trace)
        entries, self._open = tuple(self._open.values()), {}
        for entry in entries:
            await entry.channel.close()

    def _add(self, address: str) -> _Open:
        self._open[address] = _Open(self._dial(address))
        return self._open[address]

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(self._idle_s / 4)
            now_s = asyncio.get_running_loop().time()
            for address, entry in tuple(self._open.items()):
                if entry.users == 0 and now_s - entry.idle_since_s >= self._idle_s:
                    del self._open[address]
                    await entry.channel.close()
