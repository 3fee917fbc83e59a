from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from pdd.kv.layout import KvLayout
from pdd.kv.store import BlockStore
from pdd.transfer.base import Refusal
from pdd.transfer.inbound import Stage
from pdd.v1 import kv_pb2
from tests.unit.transfer.inbounds import BLOCKS, MIB, granted, inbound, reason_of
from tests.unit.transfer.parts import FOREIGN, layout, offered


def edited(change: Callable[[kv_pb2.Offer], object]) -> kv_pb2.Offer:
    offer = offered(BLOCKS).to_proto()
    change(offer)
    return offer


@pytest.mark.parametrize(
    ("offer", "reason", "complaint"),
    [
        (
            edited(lambda o: setattr(o.layout, "model_digest", "x")),
            Refusal.INCOMPATIBLE_LAYOUT,
            "prefill-0.*model_digest: 'x'",
        ),
        (edited(lambda o: setattr(o.layout, "block_bytes", 99)), Refusal.INCOMPATIBLE_LAYOUT, "block_bytes: 99 against 16"),
        (edited(lambda o: setattr(o, "wire_format", "zip")), Refusal.INCOMPATIBLE_LAYOUT, "'zip' is not one of"),
        (edited(lambda o: o.layout.ClearField("wire_formats")), Refusal.INCOMPATIBLE_LAYOUT, "none in common"),
        (kv_pb2.Offer(), Refusal.INCOMPATIBLE_LAYOUT, "layers"),
        (edited(lambda o: setattr(o, "prompt_tokens", 18)), Refusal.HASH_MISMATCH, "18 tokens is offered, one of 19"),
        (edited(lambda o: o.block_hashes.pop()), Refusal.HASH_MISMATCH, "4 were expected"),
        (edited(lambda o: o.block_hashes.append(1)), Refusal.HASH_MISMATCH, "4 were expected"),
        (edited(lambda o: o.block_hashes.__setitem__(2, 1)), Refusal.HASH_MISMATCH, "the first that differs is 2"),
    ],
)
def test_a_wrong_offer_is_refused_by_name_and_reserves_nothing(offer: kv_pb2.Offer, reason: Refusal, complaint: str) -> None:
    store = BlockStore(1000)
    transfer = inbound(store)
    reply = transfer.accept(offer)
    assert reason_of(reply) is reason
    assert transfer.refusal is not None
    with pytest.raises(type(transfer.refusal), match=complaint):
        raise transfer.refusal
    assert (transfer.stage, store.used_bytes) == (Stage.REFUSED, 0)


def test_the_salt_of_another_tenant_is_a_hash_mismatch() -> None:
    transfer = inbound(BlockStore(1000))
    transfer.admission = replace(transfer.admission, salt="another")
    assert reason_of(transfer.accept(offered(BLOCKS).to_proto())) is Refusal.HASH_MISMATCH


def test_a_block_that_fits_no_frame_is_refused_at_the_offer() -> None:
    transfer = inbound(BlockStore(1 << 30), 1, 5 * MIB)
    assert reason_of(transfer.accept(offered(1, 5 * MIB).to_proto())) is Refusal.INCOMPATIBLE_LAYOUT


def test_peers_that_differ_only_in_device_and_paging_are_compatible() -> None:
    transfer = inbound(BlockStore(1000))
    other: KvLayout = replace(layout(), engine="other", device_dtype="bf16", page_tokens=32, tensor_parallel=8)
    offer = replace(offered(BLOCKS), layout=other).to_proto()
    assert granted(transfer, offer).credit_bytes == 64


def test_a_range_that_does_not_fit_is_refused_whole() -> None:
    store = BlockStore(100)
    other = store.reserve(FOREIGN, 3, 16, 1.0)
    transfer = inbound(store)
    assert transfer.accept(offered(BLOCKS).to_proto()) is None
    assert reason_of(transfer.grant()) is Refusal.NO_MEMORY
    assert store.used_bytes == 48
    store.release(other)
