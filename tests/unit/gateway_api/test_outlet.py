"""What leaves for a client when tokens come, without a task in between."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import cast

import pytest
from prometheus_client import CollectorRegistry

from gateway.answer import Answer
from gateway.detokenizer import Vocabulary
from gateway.generation import End, MeshError, MeshErrorCode, Moments, Timeline, Tokens, Usage
from gateway.metrics import GatewayMetrics
from gateway.openai.outlet import Outlet
from gateway.openai.sse import EventStream
from gateway.text import AnswerText, TextDelta
from pdd.engine.base import FinishReason
from pdd.engine.sim.vocabulary import sim_card
from tests.eventually import eventually

CARD = sim_card(1024)
IDS = tuple(CARD.encode(" the river to the sea"))
END = End(FinishReason.LENGTH, Usage(5, len(IDS)))

Item = Tokens | End | MeshError


def token(index: int) -> Tokens:
    return Tokens(index, IDS[index : index + 1], "main-0")


class HandFed:
    """A generation of what the test gives it; what is given in one call is heard of once."""

    plan = "pipeline=direct"
    moments = Moments("hand-fed", 0.0, Timeline("direct"))

    def __init__(self) -> None:
        self.stopped = False
        self._ready: deque[Item] = deque()
        self._listener: Callable[[], None] | None = None

    def give(self, *items: Item) -> None:
        self._ready.extend(items)
        if self._listener is not None:
            self._listener()

    def __aiter__(self) -> HandFed:
        return self

    async def __anext__(self) -> Tokens | End:
        raise AssertionError("nobody iterates where an outlet takes")

    def take(self) -> Tokens | End | None:
        if not self._ready:
            return None
        item = self._ready.popleft()
        if isinstance(item, MeshError):
            raise item
        return item

    def listen(self, listener: Callable[[], None] | None) -> None:
        self._listener = listener

    def stop(self) -> None:
        self.stopped = True
        self._ready.clear()
        self.give(End(FinishReason.STOP, END.usage))


class Connection:
    """Stands for the client's: keeps what was written, and is full for as long as the test says."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.full = False
        self.waited_for = asyncio.Event()
        self._room = asyncio.Event()

    def push(self, data: bytes) -> None:
        self.writes.append(data)

    async def room(self) -> None:
        self.waited_for.set()
        await self._room.wait()

    def drain(self) -> None:
        self.full = False
        self._room.set()


class Plain:
    """Events that are their text; an empty text is none."""

    def chunk(self, delta: TextDelta) -> bytes | None:
        return delta.text.encode() or None


class Stream:
    def __init__(self, stops: Sequence[str] = ()) -> None:
        self.generation = HandFed()
        text = AnswerText(Vocabulary(CARD.tokenizer).detokenizer(), stops)
        self.answer = Answer(self.generation, text, GatewayMetrics(CollectorRegistry()), 0.0)
        self.connection = Connection()
        self._outlet = Outlet(self.answer, Plain(), cast(EventStream, self.connection))

    async def started(self) -> asyncio.Task[bytes]:
        running = asyncio.create_task(self._outlet.run())
        await asyncio.sleep(0)
        return running


async def test_tokens_are_written_before_the_call_that_brings_them_returns() -> None:
    stream = Stream()
    running = await stream.started()
    stream.generation.give(token(0))
    assert stream.connection.writes == [b" the"]
    stream.generation.give(END)
    assert await running == b""


async def test_what_is_there_already_is_one_write() -> None:
    stream = Stream()
    stream.generation.give(token(0), token(1), token(2))
    running = await stream.started()
    assert stream.connection.writes == [b" the river to"]
    stream.generation.give(END)
    await running


async def test_tokens_that_come_together_are_one_write() -> None:
    stream = Stream()
    running = await stream.started()
    stream.generation.give(token(0))
    stream.generation.give(token(1), token(2))
    assert stream.connection.writes == [b" the", b" river to"]
    stream.generation.give(END)
    await running


async def test_what_comes_with_the_end_is_left_for_the_last_write() -> None:
    stream = Stream()
    running = await stream.started()
    stream.generation.give(token(0), token(1), END)
    assert await running == b" the river"
    assert stream.connection.writes == []
    assert stream.answer.end.reason is FinishReason.LENGTH


async def test_an_error_is_raised_after_what_came_before_it_was_written() -> None:
    stream = Stream()
    running = await stream.started()
    stream.generation.give(token(0), MeshError(MeshErrorCode.PEER_LOST, "main-0 was lost"))
    with pytest.raises(MeshError, match="main-0 was lost"):
        await running
    assert stream.connection.writes == [b" the"]


async def test_a_stop_string_ends_the_generation_and_nothing_of_it_is_written() -> None:
    stream = Stream([" to"])
    running = await stream.started()
    stream.generation.give(token(0), token(1), token(2), token(3))
    assert await running == b" the river"
    assert stream.generation.stopped
    assert stream.answer.end.reason is FinishReason.STOP


async def test_nothing_is_written_to_a_full_connection_until_it_has_room() -> None:
    stream = Stream()
    running = await stream.started()
    stream.connection.full = True
    stream.generation.give(token(0))
    stream.generation.give(token(1))
    async with asyncio.timeout(5):
        await stream.connection.waited_for.wait()
    assert stream.connection.writes == []
    stream.connection.drain()
    await eventually(lambda: bool(stream.connection.writes))
    assert stream.connection.writes == [b" the river"]
    stream.generation.give(END)
    await running


async def test_a_fault_while_writing_is_the_answers_and_not_the_meshs() -> None:
    stream = Stream()
    running = await stream.started()
    stream.generation.give(Tokens(0, ("no token",), "main-0"))  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        await running


async def test_nothing_is_heard_once_it_is_over() -> None:
    stream = Stream()
    running = await stream.started()
    running.cancel()
    await asyncio.wait([running])
    stream.generation.give(token(0))
    assert stream.connection.writes == []
