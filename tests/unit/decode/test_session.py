"""What the session adds to its handle table: the bound on a peer that does not read, and what it keeps of an answer."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import grpc
import pytest

from pdd.decode.commands import Rules
from pdd.decode.frames import DEFAULT_BOUND
from pdd.decode.session import Session
from pdd.engine.base import KvSource, Retained, SeqId, TokenOut
from pdd.engine.batch import BatchEngine
from pdd.engine.compute import InlineCompute
from pdd.engine.schedule import StepLimits
from pdd.engine.sim.model import SimConfig, SimModel
from pdd.identity import RequestId
from pdd.kv.cache import PrefixCache, prefix_of
from pdd.kv.store import BlockStore
from pdd.rpc.attach import StreamEnd
from pdd.sampling import SamplingParams
from pdd.sampling_proto import sampling_to_proto
from pdd.transfer.base import Received
from pdd.transfer.receiver import Receiver
from pdd.v1 import decode_pb2

REQUEST = RequestId(5, 1)
MAIN = Rules("main", takes_handoff=True, decodes_on_commit=False, retains_output=True, context_tokens=64)
RELAY = Rules("relay", takes_handoff=False, decodes_on_commit=True, retains_output=False, context_tokens=64)
ADMIT = decode_pb2.Admit(
    handle=1,
    request=REQUEST.to_proto(),
    prompt_ids=[1, 2, 3],
    sampling=sampling_to_proto(SamplingParams(max_tokens=20, seed=1)),
    lease_ms=1000,
    decode_on_commit=True,
)


class RecordingEngine(BatchEngine):
    """Remembers which sequences are to give out their output."""

    def __init__(self) -> None:
        super().__init__(SimModel(SimConfig()), StepLimits(), InlineCompute())
        self.retaining: dict[SeqId, bool] = {}

    def open(
        self, seq: SeqId, prompt: Sequence[int], sampling: SamplingParams, kv: KvSource | None, retain: bool = False
    ) -> None:
        self.retaining[seq] = retain
        super().open(seq, prompt, sampling, kv, retain)


@pytest.mark.parametrize("rules", [MAIN, RELAY], ids=["main", "relay"])
async def test_output_is_wanted_of_the_engine_where_the_role_keeps_it(rules: Rules) -> None:
    async with RecordingEngine() as engine:
        session, _ = attached(engine, rules)
        session.accept(decode_pb2.DecodeCommand(admit=admission(rules)))
        session.ready(1, Received(REQUEST, (), first_token=4, final=False))
        assert engine.retaining == {7: rules.retains_output}


async def test_what_the_engine_retains_is_cached_under_the_requests_salt() -> None:
    async with RecordingEngine() as engine:
        session, cache = attached(engine, MAIN)
        session.accept(decode_pb2.DecodeCommand(admit=admission(MAIN)))
        session.ready(1, Received(REQUEST, (), first_token=4, final=False))
        block_tokens = engine.layout.block_tokens
        ids = tuple(range(1, 2 * block_tokens + 1))
        session.opening(Retained(7, ids, 0, (b"one", b"two")))
        assert cache.match(prefix_of(ids, block_tokens, "tenant")) == 2
        assert cache.match(prefix_of(ids, block_tokens, "")) == 0


async def test_a_recall_is_answered_on_the_stream() -> None:
    async with RecordingEngine() as engine:
        session, _ = attached(engine, MAIN)
        session.accept(decode_pb2.DecodeCommand(admit=admission(MAIN)))
        session.accept(decode_pb2.DecodeCommand(extend=decode_pb2.Extend(handle=1, ids=[4], then_decode=True)))
        session.accept(decode_pb2.DecodeCommand(recall=decode_pb2.Recall(handle=1)))
        frame = session.take()
        assert frame is not None
        assert [event.WhichOneof("event") for event in frame.opening] == ["recalled"]


def attached(engine: BatchEngine, rules: Rules) -> tuple[Session, PrefixCache]:
    """A session whose first sequence is 7, and the cache that takes what it keeps."""
    cache = PrefixCache(BlockStore(1 << 20), engine.layout.block_tokens, 1 << 20)
    return Session(engine, Receiver(engine.layout, cache.store), rules, cache, itertools.count(7), {}), cache


def admission(rules: Rules) -> decode_pb2.Admit:
    message = decode_pb2.Admit(salt="tenant")
    message.MergeFrom(ADMIT)
    message.decode_on_commit = rules.decodes_on_commit
    return message


async def test_a_peer_that_lets_too_much_pile_up_is_detached_and_its_handles_aborted() -> None:
    async with BatchEngine(SimModel(SimConfig()), StepLimits(), InlineCompute()) as engine:
        routes: dict[int, Session] = {}
        cache = PrefixCache(BlockStore(1), engine.layout.block_tokens, 0)
        session = Session(engine, Receiver(engine.layout, cache.store), RELAY, cache, itertools.count(7), routes)
        session.accept(decode_pb2.DecodeCommand(admit=ADMIT))
        session.ready(1, Received(REQUEST, (), first_token=4, final=False))
        assert list(routes) == [7]
        for index in range(DEFAULT_BOUND):
            session.token(TokenOut(7, index, 5))
        session.stepped(1)
        with pytest.raises(StreamEnd, match="wait unread") as ended:
            await session.attachment.until_ended()
        assert ended.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED

        session.close()
        session.token(TokenOut(7, DEFAULT_BOUND, 5))
        frame = session.take()
        assert frame is not None
        assert (list(frame.token), list(frame.opening), list(frame.closing)) == ([], [], [])
