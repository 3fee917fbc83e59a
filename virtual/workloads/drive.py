"""Asks a workload of a mesh, in the time of the loop that it runs on, and keeps what became of each request.

Called by benchmarks and tests. A task a session, which lives as long as the session; of an answer, its ids are kept until the
next turn, and its times until they are summed up in a Record. A session whose request fails is over.
"""

from __future__ import annotations

import asyncio
import itertools
from array import array
from random import Random
from typing import Protocol

from gateway.generation import End, Generation, GenerationSpec, Generator, MeshError, Tokens
from pdd.sampling import SamplingParams
from virtual.workloads.base import Ids, Session, Turn, Workload
from virtual.workloads.percentile import percentile
from virtual.workloads.record import Record


class Watcher(Protocol):
    """Sees what is asked and answered; `reference.Reference` is one."""

    def asked(self, prompt: Ids) -> object: ...

    def answered(self, prompt: Ids, answer: Ids) -> object: ...


async def drive(
    workload: Workload, generator: Generator, random: Random, duration_s: float, watcher: Watcher | None = None
) -> list[Record]:
    """Ask everything that is due within `duration_s`, and wait for the answers. Records are in the order of their ends."""
    run = _Run(generator, duration_s, watcher)
    async with asyncio.TaskGroup() as group:
        for number, session in enumerate(workload.sessions(random)):
            if session.start_s >= duration_s:
                break
            await run.sleep_until(session.start_s)
            group.create_task(run.session(number, session))
    return run.records


class _Run:
    def __init__(self, generator: Generator, duration_s: float, watcher: Watcher | None) -> None:
        self.records: list[Record] = []
        self._generator = generator
        self._duration_s = duration_s
        self._watcher = watcher
        self._clock = asyncio.get_running_loop().time
        self._began_s = self._clock()
        self._asked = 0

    async def sleep_until(self, at_s: float) -> None:
        await asyncio.sleep(max(0.0, self._began_s + at_s - self._clock()))

    async def session(self, number: int, session: Session) -> None:
        turns = 0
        answer: Ids = ()
        while (turn := session.next_turn(answer)) is not None:
            due_s = self._clock() - self._began_s + turn.think_s
            if due_s >= self._duration_s:
                return
            await self.sleep_until(due_s)
            reader = await self._ask(turn)
            self.records.append(reader.record(number, turns, self._began_s, self._clock()))
            if reader.end is None:
                return
            answer, turns = tuple(reader.tokens), turns + 1
            if self._watcher is not None:
                self._watcher.answered(turn.prompt, answer)

    async def _ask(self, turn: Turn) -> _Reader:
        if self._watcher is not None:
            self._watcher.asked(turn.prompt)
        self._asked += 1
        sampling = SamplingParams(max_tokens=turn.max_tokens, seed=self._asked, temperature=0.0, ignore_eos=True)
        spec = GenerationSpec(turn.prompt, sampling, "workload", expected_tokens=turn.expected_tokens)
        reader = _Reader(turn)
        try:
            async with self._generator.generate(spec) as generation:
                await reader.run(generation)
        except MeshError as error:
            reader.fail(error)
        return reader


class _Reader:
    """Takes the tokens of one answer in the very call that brings them, as the HTTP server's outlet does."""

    def __init__(self, turn: Turn) -> None:
        self.tokens: list[int] = []
        self.end: End | None = None
        self._turn = turn
        self._clock = asyncio.get_running_loop().time
        self._asked_s = self._clock()
        self._arrived_s = array("d")  # of each token
        self._error: MeshError | None = None
        self._over = asyncio.Event()

    async def run(self, generation: Generation) -> None:
        """Until its End. Raises MeshError."""

        def heard() -> None:
            try:
                while (item := generation.take()) is not None:
                    self._take(item)
            except MeshError as error:
                self.fail(error)

        generation.listen(heard)
        heard()
        await self._over.wait()
        generation.listen(None)

    def fail(self, error: MeshError) -> None:
        self._error, self.end = error, None
        self._over.set()

    def record(self, session: int, turn: int, began_s: float, now_s: float) -> Record:
        times = self._arrived_s
        gaps = [after - before for before, after in itertools.pairwise(times)]
        return Record(
            session=session,
            turn=turn,
            asked_s=self._asked_s - began_s,
            took_s=now_s - self._asked_s,
            prompt_tokens=len(self._turn.prompt),
            max_tokens=self._turn.max_tokens,
            tokens=len(times),
            ttft_s=times[0] - self._asked_s if times else 0.0,
            second_s=gaps[0] if gaps else 0.0,
            gap_p50_s=percentile(gaps, 50),
            gap_p99_s=percentile(gaps, 99),
            gap_max_s=max(gaps, default=0.0),
            end=self.end,
            error="" if self._error is None else self._error.code.value,
        )

    def _take(self, item: Tokens | End) -> None:
        if isinstance(item, Tokens):
            self.tokens += item.tokens
            self._arrived_s.extend([self._clock()] * len(item.tokens))
        else:
            self.end = item
            self._over.set()
