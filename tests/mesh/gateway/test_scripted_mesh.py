"""Whole requests against instances that say exactly what a test wants them to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import pytest

from gateway.generation import End, MeshError, MeshErrorCode, Tokens
from gateway.mesh.mesh import Mesh
from pdd.catalog.base import Role
from pdd.catalog.memory import MemoryRegistry
from pdd.catalog.memory_prefixes import MemoryPrefixCatalog
from pdd.engine.base import FinishReason
from pdd.engine.sim.vocabulary import sim_card
from pdd.identity import Instance, RequestId
from pdd.v1 import decode_pb2, prefill_pb2, sampling_pb2
from tests.eventually import eventually
from tests.mesh.gateway.asking import GATEWAY, Observed, mesh_settings, spec
from tests.mesh.gateway.scripted import ScriptedDecoder, ScriptedPrefill, serving

KV_READY = decode_pb2.OpeningEvent(handle=1, kv_ready=decode_pb2.KvReady(blocks=4))
BUSY = decode_pb2.DecodeLoad(running=8, waiting=3, slots=8)
FULL = decode_pb2.DecodeLoad(running=8, slots=8)
IDLE = decode_pb2.DecodeLoad(running=1, slots=8)


@dataclass(frozen=True, slots=True)
class Stage:
    mesh: Mesh
    prefill: ScriptedPrefill
    relay: ScriptedDecoder
    main: ScriptedDecoder
    observed: Observed

    def first_token(self, token: int = 100) -> None:
        event = prefill_pb2.PrefillEvent(handle=1, first_token=prefill_pb2.FirstToken(token=token))
        self.prefill.say(prefill_pb2.PrefillFrame(events=[event]))

    def queued_at_prefill(self, tokens: int) -> None:
        self.prefill.say(prefill_pb2.PrefillFrame(load=prefill_pb2.PrefillLoad(running=1, queued_tokens=tokens)))

    def relay_makes(self, first_index: int, count: int, load: decode_pb2.DecodeLoad = IDLE) -> None:
        indices = range(first_index, first_index + count)
        frame = decode_pb2.DecodeFrame(handle=[1] * count, index=indices, token=[100 + index for index in indices], load=load)
        self.relay.say(frame)


@asynccontextmanager
async def staged(**settings: Any) -> AsyncIterator[Stage]:
    observed = Observed()
    async with (
        serving(ScriptedPrefill()) as prefill,
        serving(ScriptedDecoder(Role.RELAY)) as relay,
        serving(ScriptedDecoder(Role.MAIN)) as main,
        MemoryRegistry(asyncio.get_running_loop().time) as registry,
    ):
        for instance in (prefill, relay, main):
            await registry.announce(instance.registration, 1000.0)
        configured = mesh_settings(closing_timeout_s=0.1, **settings)
        async with Mesh(
            configured, registry, MemoryPrefixCatalog(registry), sim_card(8192), gateway=GATEWAY, observer=observed
        ) as mesh:
            await eventually(lambda: mesh.missing_roles() == ())
            yield Stage(mesh, prefill, relay, main, observed)


async def test_everybody_is_told_at_once() -> None:
    async with staged(tenant_salt="ours") as stage, stage.mesh.generate(spec()):
        start = (await stage.prefill.heard("start")).start
        admits = [(await decoder.heard("admit")).admit for decoder in (stage.relay, stage.main)]
        requests = [RequestId.from_proto(request) for request in (start.request, *(admit.request for admit in admits))]
        assert requests == [RequestId(77, 1)] * 3
        assert {start.salt, *(admit.salt for admit in admits)} == {"ours"}
        targets = [(Instance.from_proto(target.instance), target.kv_address) for target in start.targets]
        assert targets == [(decoder.instance, decoder.address) for decoder in (stage.relay, stage.main)]


async def test_silence_ends_a_request_and_aborts_it_everywhere() -> None:
    async with staged(stall_deadline_s=0.2) as stage, stage.mesh.generate(spec()) as generation:
        stage.first_token()
        with pytest.raises(MeshError, match=r"nothing heard for 0\.\d+ s, waiting for tokens from the relay") as raised:
            async for _ in generation:
                pass
        assert raised.value.code is MeshErrorCode.DEADLINE
        for instance in (stage.prefill, stage.relay, stage.main):
            await instance.heard("abort")
        await eventually(lambda: sorted(stage.observed.unanswered) == ["main-0", "prefill-0", "relay-0"])


async def test_a_request_that_is_heard_of_goes_on_beyond_the_deadline() -> None:
    async with staged(stall_deadline_s=1.0) as stage, stage.mesh.generate(spec(max_tokens=8000)) as generation:
        stage.first_token()
        items = aiter(generation)
        loop = asyncio.get_running_loop()
        index, end_s = 1, loop.time() + 1.5
        while loop.time() < end_s:
            await anext(items)
            stage.relay_makes(index, 1)
            index += 1
        assert isinstance(await anext(items), Tokens)


async def test_prefill_that_computes_is_not_silent_for_those_that_wait_for_it() -> None:
    async with staged(stall_deadline_s=1.0) as stage, stage.mesh.generate(spec()) as generation:
        waiting = asyncio.ensure_future(anext(aiter(generation)))
        loop = asyncio.get_running_loop()
        end_s = loop.time() + 1.5
        for left in range(1000, 0, -1):
            if loop.time() >= end_s:
                break
            stage.queued_at_prefill(left)
            await asyncio.wait([waiting], timeout=0.1)
        assert not waiting.done()
        stage.first_token()
        assert await waiting == Tokens(0, (100,), "prefill-0")


@pytest.mark.parametrize("has_its_token", [False, True])
async def test_prefill_that_only_gets_more_to_do_or_works_for_others_is_silent(has_its_token: bool) -> None:
    async with staged(stall_deadline_s=0.5) as stage, stage.mesh.generate(spec()) as generation:
        items = aiter(generation)
        if has_its_token:
            stage.first_token()
            await anext(items)
        waiting = asyncio.ensure_future(anext(items))
        for number in range(1000):
            if waiting.done():
                break
            stage.queued_at_prefill(1000 - number if has_its_token else 1000 + number)
            await asyncio.wait([waiting], timeout=0.05)
        with pytest.raises(MeshError, match="nothing heard"):
            await waiting


@pytest.mark.parametrize("lost", [False, True])
async def test_a_relay_is_stopped_when_main_has_a_slot_and_not_before(lost: bool) -> None:
    async with staged(handoff="one_shot") as stage, stage.mesh.generate(spec(max_tokens=200)) as generation:
        await stage.main.heard("admit")
        stage.first_token()
        items = aiter(generation)
        await anext(items)
        stage.main.say(decode_pb2.DecodeFrame(opening=[KV_READY], load=FULL))
        for index in range(1, 30):
            stage.relay_makes(index, 1)
            await anext(items)
        assert "stop" not in stage.relay.kinds()
        if lost:
            stage.main.end(grpc.StatusCode.UNAVAILABLE)
            await eventually(lambda: stage.observed.connected["main-0"] is False)
            finished = decode_pb2.Finished(reason=sampling_pb2.FINISH_REASON_LENGTH, next_index=30)
            stage.relay.say(decode_pb2.DecodeFrame(closing=[decode_pb2.ClosingEvent(handle=1, finished=finished)]))
            assert isinstance([item async for item in items][-1], End)
        else:
            stage.main.say(decode_pb2.DecodeFrame(load=IDLE))
            await stage.relay.heard("stop")


async def test_the_relays_load_turns_a_running_catch_up_into_one_shot() -> None:
    async with staged(handoff="auto") as stage, stage.mesh.generate(spec(max_tokens=200, streaming=False)) as generation:
        await stage.main.heard("admit")
        stage.first_token()
        stage.relay_makes(1, 39)
        seen = 0
        async for item in generation:
            assert isinstance(item, Tokens)
            seen += len(item.tokens)
            if seen == 40:
                break
        stage.main.say(decode_pb2.DecodeFrame(opening=[KV_READY]))
        first = (await stage.main.heard("extend")).extend
        assert (first.first_index, len(first.ids), first.then_decode) == (0, 39, False)
        stage.relay_makes(40, 1, load=BUSY)
        await stage.relay.heard("stop")
        stopped = decode_pb2.ClosingEvent(handle=1, stopped=decode_pb2.Stopped(next_index=41))
        stage.relay.say(decode_pb2.DecodeFrame(closing=[stopped]))
        await eventually(lambda: stage.main.kinds().count("extend") == 2)
        last = stage.main.commands[-1].extend
        assert (last.first_index, list(last.ids), last.then_decode) == (39, [139, 140], True)


@pytest.mark.parametrize("stops", [True, False])
async def test_a_stop_string_counts_what_was_read_and_no_more(stops: bool) -> None:
    async with staged(handoff="one_shot") as stage, stage.mesh.generate(spec(max_tokens=200, streaming=False)) as generation:
        await stage.relay.heard("admit")
        stage.first_token()
        items = aiter(generation)
        assert await anext(items) == Tokens(0, (100,), "prefill-0")
        stage.relay_makes(1, 3)
        assert await anext(items) == Tokens(1, (101, 102, 103), "relay-0")
        finished = decode_pb2.Finished(reason=sampling_pb2.FINISH_REASON_LENGTH, next_index=6)
        stage.relay_makes(4, 2)
        stage.relay.say(decode_pb2.DecodeFrame(closing=[decode_pb2.ClosingEvent(handle=1, finished=finished)]))
        await stage.main.heard("abort")  # the relay's end is here, and two tokens nobody has read
        if stops:
            generation.stop()
        ends = [item async for item in items]
        end = ends[-1]
        assert isinstance(end, End)
        assert len(ends) == (1 if stops else 2)
        assert end.reason is (FinishReason.STOP if stops else FinishReason.LENGTH)
        assert end.usage.completion_tokens == (4 if stops else 6)


async def test_a_lost_stream_is_opened_again() -> None:
    async with staged() as stage:
        stage.relay.end(grpc.StatusCode.UNAVAILABLE)
        await eventually(lambda: stage.observed.connected["relay-0"] is False)
        await eventually(lambda: stage.observed.connected["relay-0"] is True)
        async with stage.mesh.generate(spec()):
            await stage.relay.heard("admit")
