"""Driving a workload: a closed loop in the loop's time, and what is kept of each request."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from random import Random

import pytest

from gateway.generation import GenerationSpec, MeshError, MeshErrorCode
from tests.unit.virtual.workloads.slow import SlowGenerator
from virtual.clock import VirtualLoop
from virtual.workloads.base import Ids, Session, Turn
from virtual.workloads.drive import drive
from virtual.workloads.record import Record


@dataclass(frozen=True)
class Echoes:
    """Sessions that ask with the last answer in the prompt."""

    starts_s: tuple[float, ...] = (0.0,)
    turns: int = 2
    max_tokens: int = 4
    think_s: float = 1.0
    context_tokens: int = 100

    def sessions(self, random: Random) -> Iterator[Session]:
        for number, start_s in enumerate(self.starts_s):
            yield Session(start_s, self._turns(number))

    def _turns(self, number: int) -> Generator[Turn, Ids, None]:
        prompt: Ids = (100 + number,)
        for _ in range(self.turns):
            prompt = prompt + (yield Turn(prompt, self.max_tokens, self.think_s, expected_tokens=9))


@dataclass
class Seen:
    prompts: list[Ids] = field(default_factory=list)
    answers: list[tuple[Ids, Ids]] = field(default_factory=list)

    def asked(self, prompt: Ids) -> None:
        self.prompts.append(prompt)

    def answered(self, prompt: Ids, answer: Ids) -> None:
        self.answers.append((prompt, answer))


async def test_the_next_turn_has_the_answer_and_comes_after_the_pause(loop: VirtualLoop) -> None:
    generator = SlowGenerator([0.5, 0.1])
    await drive(Echoes(), generator, Random(1), 60.0)
    assert [spec.prompt for spec in generator.specs] == [(100,), (100, 0, 1, 2, 3)]
    assert generator.asked_s == pytest.approx([1.0, 1.0 + 0.5 + 3 * 0.1 + 1.0])
    assert [(spec.sampling.max_tokens, spec.sampling.ignore_eos, spec.expected_tokens) for spec in generator.specs] == [
        (4, True, 9)
    ] * 2


async def test_a_record_tells_the_times_of_a_users_tokens(loop: VirtualLoop) -> None:
    (record,) = await drive(Echoes(turns=1), SlowGenerator([0.5, 0.1, 0.7, 0.1]), Random(1), 60.0)
    assert (record.session, record.turn, record.prompt_tokens, record.max_tokens, record.tokens) == (0, 0, 1, 4, 4)
    assert (record.asked_s, record.took_s, record.ttft_s, record.second_s) == pytest.approx((1.0, 1.4, 0.5, 0.1))
    assert (record.gap_p50_s, record.gap_p99_s, record.gap_max_s) == pytest.approx((0.1, 0.7, 0.7))
    assert (record.pipeline, record.cached_tokens, record.eager_tokens, record.wan_bytes) == ("relay", 2, 1, 100)
    assert record.error == ""


async def test_tokens_that_come_together_have_no_gap_between_them(loop: VirtualLoop) -> None:
    (record,) = await drive(Echoes(turns=1), SlowGenerator([0.5], bundle=2), Random(1), 60.0)
    assert (record.second_s, record.gap_max_s) == pytest.approx((0.0, 0.5))


async def test_a_single_token_has_no_second(loop: VirtualLoop) -> None:
    (record,) = await drive(Echoes(turns=1, max_tokens=1), SlowGenerator([0.5]), Random(1), 60.0)
    assert (record.tokens, record.ttft_s, record.second_s, record.gap_max_s) == (1, 0.5, 0.0, 0.0)


async def test_nothing_is_asked_after_the_end_and_what_runs_is_waited_for(loop: VirtualLoop) -> None:
    workload = Echoes(starts_s=(0.0, 2.0, 9.0), turns=100)
    records = await drive(workload, generator := SlowGenerator([1.0]), Random(1), 9.0)
    assert max(generator.asked_s) < 9.0
    assert max(record.asked_s + record.took_s for record in records) > 9.0
    assert {record.session for record in records} == {0, 1}
    assert len(records) == len(generator.specs)
    assert generator.running == 0


async def test_times_count_from_the_start_of_the_run(loop: VirtualLoop) -> None:
    await asyncio.sleep(50.0)
    (record,) = await drive(Echoes(turns=1), SlowGenerator([0.5]), Random(1), 60.0)
    assert record.asked_s == pytest.approx(1.0)


async def test_a_failed_request_ends_its_session_and_no_other(loop: VirtualLoop) -> None:
    def first_fails(spec: GenerationSpec) -> MeshError | None:
        return MeshError(MeshErrorCode.PEER_LOST, "main-0 was lost") if spec.prompt[0] == 100 else None

    generator = SlowGenerator([0.5], fails=first_fails)
    records = await drive(Echoes(starts_s=(0.0, 0.1)), generator, Random(1), 60.0)
    failed: list[Record] = [record for record in records if record.error]
    assert [(record.session, record.error, record.tokens, record.pipeline) for record in failed] == [(0, "peer_lost", 2, "")]
    assert [record.session for record in records if not record.error] == [1, 1]
    assert generator.running == 0


async def test_a_watcher_sees_prompts_and_answers(loop: VirtualLoop) -> None:
    seen = Seen()
    await drive(Echoes(), SlowGenerator([0.1]), Random(1), 60.0, seen)
    assert seen.prompts == [(100,), (100, 0, 1, 2, 3)]
    assert seen.answers == [((100,), (0, 1, 2, 3)), ((100, 0, 1, 2, 3), (0, 1, 2, 3))]
