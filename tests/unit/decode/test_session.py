"""What the session adds to its handle table: the bound on a peer that does not read."""

from __future__ import annotations

import itertools

import grpc
import pytest

from pdd.decode.commands import Rules
from pdd.decode.frames import DEFAULT_BOUND
from pdd.decode.session import Session
from pdd.engine.base import TokenOut
from pdd.engine.batch import BatchEngine
from pdd.engine.compute import InlineCompute
from pdd.engine.schedule import StepLimits
from pdd.engine.sim.model import SimConfig, SimModel
from pdd.identity import RequestId
from pdd.kv.store import BlockStore
from pdd.rpc.attach import StreamEnd
from pdd.sampling import SamplingParams
from pdd.sampling_proto import sampling_to_proto
from pdd.transfer.base import Received
from pdd.transfer.receiver import Receiver
from pdd.v1 import decode_pb2

REQUEST = RequestId(5, 1)
RELAY = Rules("relay", takes_handoff=False, decodes_on_commit=True, context_tokens=64)
ADMIT = decode_pb2.Admit(
    handle=1,
    request=REQUEST.to_proto(),
    prompt_ids=[1, 2, 3],
    sampling=sampling_to_proto(SamplingParams(max_tokens=20, seed=1)),
    lease_ms=1000,
    decode_on_commit=True,
)


async def test_a_peer_that_lets_too_much_pile_up_is_detached_and_its_handles_aborted() -> None:
    async with BatchEngine(SimModel(SimConfig()), StepLimits(), InlineCompute()) as engine:
        routes: dict[int, Session] = {}
        session = Session(engine, Receiver(engine.layout, BlockStore(1)), RELAY, itertools.count(7), routes)
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
