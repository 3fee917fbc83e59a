"""The timer of a playout, on a virtual clock."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from gateway.generation import Tokens
from gateway.mesh.player import Player
from gateway.playout import Playout
from pdd.catalog.base import Role
from virtual.clock import run

INTERVAL_S = 0.02


class Reader:
    """Notes what it is handed and when, and may end the request over a token."""

    def __init__(self, playout: Playout | None, ends_at: int | None = None) -> None:
        self.loop = asyncio.get_running_loop()
        self.player = Player(playout, self.hear)
        self.heard: list[tuple[float, int]] = []
        self._ends_at = ends_at

    def hear(self, played: Sequence[Tokens]) -> None:
        for tokens in played:
            self.heard.append((round(self.loop.time(), 6), tokens.first_index))
            if tokens.first_index == self._ends_at:
                self.player.close()

    def play(self, index: int, role: Role = Role.RELAY) -> None:
        self.player.play(Tokens(index, (index,), role.value), role, self.loop.time())


def playout() -> Playout:
    return Playout(0.04, INTERVAL_S)


async def _burst(ends_at: int | None) -> list[tuple[float, int]]:
    """Index 0, and two more before they are due."""
    reader = Reader(playout(), ends_at)
    reader.play(0, Role.PREFILL)
    for index in (1, 2):
        await asyncio.sleep(INTERVAL_S / 2)
        reader.play(index)
    await asyncio.sleep(1.0)
    return reader.heard


def test_tokens_come_when_they_are_due() -> None:
    # The relay turns out to make one every 10 ms: the first was to come after 11 ms, as is known when the second arrives.
    assert run(_burst, None) == [(0.0, 0), (0.02, 1), (0.022, 2)]


def test_nothing_comes_after_the_reader_has_ended_it_over_a_token() -> None:
    assert run(_burst, 1) == [(0.0, 0), (0.02, 1)]


async def _flushed() -> tuple[list[tuple[float, int]], float | None]:
    reader = Reader(playout())
    reader.play(0, Role.PREFILL)
    reader.play(1)
    reader.play(2)
    reader.player.flush(reader.loop.time())
    reader.player.flush(reader.loop.time())
    await asyncio.sleep(1.0)
    return reader.heard, reader.player.gap_s


def test_the_end_plays_all_and_leaves_no_timer() -> None:
    assert run(_flushed) == ([(0.0, 0), (0.0, 1), (0.0, 2)], 0.0)


async def _without() -> tuple[list[tuple[float, int]], float | None]:
    reader = Reader(None)
    for index in range(3):
        reader.play(index)
    reader.player.switch()
    return reader.heard, reader.player.gap_s


def test_without_a_playout_everything_comes_at_once() -> None:
    assert run(_without) == ([(0.0, 0), (0.0, 1), (0.0, 2)], None)
