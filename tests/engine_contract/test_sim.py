from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace

import pytest

from pdd.engine.base import Engine, Failed, KvSource, Payload
from pdd.engine.batch import BatchEngine
from pdd.engine.compute import Compute, InlineCompute, ThreadCompute
from pdd.engine.schedule import StepLimits
from pdd.engine.sim.digest import Noise
from pdd.engine.sim.model import SimConfig, SimModel
from pdd.engine.sim.reference import continuation
from tests.engine_contract.case import greedy
from tests.engine_contract.contract import EngineContract
from tests.engine_contract.handoff import told
from tests.engine_contract.observer import Observer

Payloads = tuple[Payload, ...]


class SimContract(EngineContract):
    config = SimConfig(slots=3, context_tokens=512)
    limits = StepLimits()
    compute: type[Compute] = InlineCompute

    def running(self, extend_tokens: int = 256) -> AbstractAsyncContextManager[Engine]:
        limits = replace(self.limits, extend_tokens=extend_tokens)
        return BatchEngine(SimModel(self.config), limits, self.compute())

    def prompt(self, tokens: int) -> list[int]:
        return [(7 * position + position // 5) % 1000 for position in range(tokens)]


def _flip(payload: Payload, byte: int) -> bytes:
    changed = bytearray(payload)
    changed[byte] ^= 1
    return bytes(changed)


DAMAGE: dict[str, Callable[[Payloads, Payloads], Payloads]] = {
    "first bit": lambda kv, _: (_flip(kv[0], 0), *kv[1:]),
    "last bit": lambda kv, _: (*kv[:-1], _flip(kv[-1], 127)),
    "swapped": lambda kv, _: (kv[1], kv[0], *kv[2:]),
    "doubled": lambda kv, _: (kv[0], kv[0], *kv[2:]),
    "from elsewhere": lambda kv, foreign: (*kv[:1], foreign[1], *kv[2:]),
    "empty": lambda kv, _: (bytes(128), *kv[1:]),
}


class TestSim(SimContract):
    @pytest.mark.parametrize("tokens", [1, 16, 33, 300])
    async def test_the_text_is_the_reference(self, observer: Observer, tokens: int) -> None:
        prompt = self.prompt(tokens)
        assert await observer.plain(prompt, greedy(100)) == continuation(prompt, 100, ignore_eos=True)

    @pytest.fixture
    async def kv(self, observer: Observer) -> KvSource:
        kv, _ = await observer.prefilled(self.prompt(53), greedy(12))
        return kv

    @pytest.mark.parametrize("damage", DAMAGE)
    async def test_a_damaged_block_changes_the_text(self, observer: Observer, kv: KvSource, damage: str) -> None:
        prompt = self.prompt(53)
        foreign, _ = await observer.prefilled(prompt[::-1], greedy(12))
        plain = await observer.plain(prompt, greedy(12))
        seq = observer.decode(prompt, greedy(12), KvSource(DAMAGE[damage](kv.payloads, foreign.payloads)), plain[:1])
        await observer.closing(seq)
        assert observer.seen[seq].ids != plain[1:]

    @pytest.mark.parametrize("damage", DAMAGE)
    async def test_a_damaged_block_lowers_agreement(self, observer: Observer, kv: KvSource, damage: str) -> None:
        prompt = self.prompt(53)
        foreign, _ = await observer.prefilled(prompt[::-1], greedy(40))
        plain = await observer.plain(prompt, greedy(40))
        for payloads, least, most in ((kv.payloads, 39, 39), (DAMAGE[damage](kv.payloads, foreign.payloads), 0, 5)):
            seq = told(observer, prompt, greedy(40), KvSource(payloads), [plain[:20], plain[20:39]], score=True)
            await observer.closing(seq)
            extended = observer.seen[seq].extended
            assert sum(event.scored_tokens for event in extended) == 39
            assert least <= sum(event.agreed_tokens for event in extended) <= most

    async def test_a_short_payload_fails_the_sequence_alone(self, observer: Observer, kv: KvSource) -> None:
        prompt = self.prompt(53)
        plain = await observer.plain(prompt, greedy(12))
        short = KvSource((*kv.payloads[:2], bytes(kv.payloads[2])[:-1]))
        broken = observer.decode(prompt, greedy(12), short, plain[:1])
        neighbour = observer.decode(prompt, greedy(12), kv, plain[:1])
        closing = await observer.closing(broken)
        assert isinstance(closing, Failed)
        assert "block 2" in str(closing.fault)
        await observer.closing(neighbour)
        assert observer.seen[neighbour].ids == plain[1:]

    @pytest.mark.parametrize("blocks", [0, 2])
    async def test_missing_blocks_fail_the_sequence(self, observer: Observer, kv: KvSource, blocks: int) -> None:
        seq = observer.decode(self.prompt(53), greedy(12), KvSource(kv.payloads[:blocks]), [1])
        closing = await observer.closing(seq)
        assert isinstance(closing, Failed)
        assert "3 full blocks" in str(closing.fault)


class TestPaddedSim(SimContract):
    config = SimConfig(slots=3, context_tokens=512, pad_to_declared=True)

    async def test_payloads_are_as_long_as_the_layout_says(self, observer: Observer) -> None:
        kv, _ = await observer.prefilled(self.prompt(40), greedy(4))
        assert {len(payload) for payload in kv.payloads} == {observer.engine.layout.block_bytes}


class TestSimOnAThread(SimContract):
    compute = ThreadCompute


class TestSimInSmallSteps(SimContract):
    """Passes longer than a step, and chunks that are no whole number of blocks."""

    limits = StepLimits(chunk_tokens=13, step_tokens=21)
    chunk_tokens = 13


class TestSimOnAnotherDevice(SimContract):
    """Pages that blocks do not fit, and elements of another width."""

    config = SimConfig(slots=3, context_tokens=512, page_tokens=24, device_dtype="f32")


class TestNoisySim(SimContract):
    """Its text is its own, and the same however it is made."""

    config = SimConfig(slots=3, context_tokens=512, noise=Noise(0.4, seed=9))

    async def test_the_text_is_not_the_exact_one(self, observer: Observer) -> None:
        prompt = self.prompt(33)
        plain = await observer.plain(prompt, greedy(60))
        assert plain == continuation(prompt, 60, ignore_eos=True, noise=self.config.noise)
        assert plain != continuation(prompt, 60, ignore_eos=True)

    async def test_it_agrees_with_an_exact_text_in_part(self, observer: Observer) -> None:
        prompt = self.prompt(33)
        exact = continuation(prompt, 100, ignore_eos=True)
        seq = told(observer, prompt, greedy(101), None, [exact], score=True)
        extended = await observer.extended(seq)
        assert extended.scored_tokens == 100
        assert 0 < extended.agreed_tokens < 100
