"""Inbound transfers at their stages, for the tests of one."""

from __future__ import annotations

from pdd.kv.cache import PrefixCache
from pdd.kv.store import BlockStore
from pdd.transfer.admission import Admission
from pdd.transfer.base import Refusal
from pdd.transfer.inbound import Inbound
from pdd.v1 import kv_pb2
from tests.unit.transfer.parts import BLOCK_TOKENS, REQUEST, SALT, layout, offered, payloads, prompt

BLOCKS = 4
MIB = 1 << 20
MADE = payloads(BLOCKS)


def uncached(store: BlockStore) -> PrefixCache:
    return PrefixCache(store, BLOCK_TOKENS, 0)


def inbound(store: BlockStore, blocks: int = BLOCKS, block_bytes: int = 16, window_bytes: int = 32 * MIB) -> Inbound:
    admission = Admission(REQUEST, prompt(blocks), SALT, 10.0, 10.0)
    return Inbound(admission, layout(block_bytes), uncached(store), window_bytes)


def receiving(store: BlockStore, blocks: int = BLOCKS, block_bytes: int = 16, window_bytes: int = 32 * MIB) -> Inbound:
    transfer = inbound(store, blocks, block_bytes, window_bytes)
    granted(transfer, offered(blocks, block_bytes).to_proto())
    return transfer


def granted(transfer: Inbound, offer: kv_pb2.Offer) -> kv_pb2.Want:
    assert transfer.accept(offer) is None
    reply = transfer.grant()
    assert reply.HasField("want")
    return reply.want


def reason_of(reply: kv_pb2.PushReply | None) -> Refusal:
    assert reply is not None
    assert reply.WhichOneof("kind") == "refused", reply
    assert len(reply.refused.message) > 10
    return Refusal(reply.refused.reason)
