from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdd.identity import RequestId
from pdd.kv.layout import SIM_DIGEST
from pdd.kv.store import BlockStore, LeaseEnded
from pdd.transfer.admission import Admission
from pdd.transfer.base import Refusal
from pdd.transfer.inbound import Inbound, Stage
from pdd.v1 import kv_pb2
from tests.unit.transfer.inbounds import BLOCKS, MADE, MIB, granted, inbound, reason_of, receiving, uncached
from tests.unit.transfer.parts import (
    FIRST_TOKEN,
    FOREIGN,
    OLD_ATTEMPT,
    REQUEST,
    SALT,
    cancel,
    commit,
    damaged,
    frame,
    layout,
    offered,
    payloads,
    prompt,
)

# ── a transfer that goes well ──


def test_blocks_become_readable_with_the_commit_and_stay_until_closed() -> None:
    store = BlockStore(100)
    transfer = inbound(store)
    want = granted(transfer, offered(BLOCKS).to_proto())
    assert (want.first_block, want.credit_bytes) == (0, 64)
    assert store.used_bytes == 64
    transfer.take(frame(MADE[:3]), 0.0)
    transfer.take(frame(MADE[3:], 3), 0.0)
    assert transfer.received is None
    reply = transfer.take(commit(MADE), 0.0)
    assert reply is not None
    assert reply.HasField("committed")
    assert transfer.stage is Stage.COMMITTED
    assert transfer.received is not None
    assert [bytes(payload) for payload in transfer.received.payloads] == MADE
    assert (transfer.received.request, transfer.received.first_token, transfer.received.final) == (REQUEST, FIRST_TOKEN, False)
    assert store.used_bytes == 64
    transfer.close()
    assert store.used_bytes == 0


def test_a_prompt_under_one_block_commits_no_frames() -> None:
    transfer = inbound(BlockStore(1), blocks=0)
    want = granted(transfer, offered(0).to_proto())
    assert (want.first_block, want.credit_bytes) == (0, 0)
    last = commit([])
    last.commit.final = True
    reply = transfer.take(last, 0.0)
    assert reply is not None
    assert reply.HasField("committed")
    assert transfer.received is not None
    assert (transfer.received.payloads, transfer.received.final) == ((), True)


@settings(deadline=None)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=8))
def test_however_the_blocks_are_cut_into_frames_they_arrive_alike(cuts: list[int]) -> None:
    total = sum(cuts)
    made, store = payloads(total), BlockStore(1000)
    transfer, at = receiving(store, total), 0
    for cut in cuts:
        transfer.take(frame(made[at : at + cut], at), 0.0)
        at += cut
    transfer.take(commit(made), 0.0)
    assert transfer.received is not None
    assert b"".join(transfer.received.payloads) == b"".join(made)


def test_credit_returns_in_quarters_of_the_window_and_after_the_first_and_the_last_block() -> None:
    made = payloads(16, MIB)
    transfer = receiving(BlockStore(16 * MIB), 16, MIB, window_bytes=8 * MIB)
    credits = []
    for index, block in enumerate(made):
        reply = transfer.take(frame([block], index, block_bytes=MIB), 0.0)
        credits.append((reply.credit.verified_blocks, reply.credit.credit_bytes // MIB) if reply else None)
    assert credits == [(1, 1), *((index + 1, 2) if index % 2 == 0 else None for index in range(1, 15)), (16, 1)]


def test_on_a_slow_link_credit_returns_as_often_as_goodput_is_to_be_measured() -> None:
    made = payloads(16, MIB)
    transfer = receiving(BlockStore(16 * MIB), 16, MIB, window_bytes=64 * MIB)
    returned = [transfer.take(frame([block], i, block_bytes=MIB), 0.03 * i) is not None for i, block in enumerate(made[:7])]
    assert returned == [True, False, True, False, True, False, True]


@pytest.mark.parametrize(
    ("blocks", "window", "mebibytes"),
    [
        (64, 32, 32),
        (8, 32, 8),  # no more than the transfer has
        (64, 1, 4),  # no less than the largest frame
        (2, 1, 2),
    ],
)
def test_the_credit_holds_the_largest_frame_and_no_more_than_the_transfer(blocks: int, window: int, mebibytes: int) -> None:
    transfer = inbound(BlockStore(blocks * MIB), blocks, MIB, window * MIB)
    assert granted(transfer, offered(blocks, MIB).to_proto()).credit_bytes == mebibytes * MIB


@settings(deadline=None)
@given(st.integers(1, 40), st.sampled_from([MIB // 2, MIB, 3 * MIB, 4 * MIB, 9 * MIB]), st.integers(1, 40))
def test_the_credit_always_leaves_room_for_a_block(blocks: int, block_bytes: int, window_mib: int) -> None:
    declaring = layout(block_bytes, SIM_DIGEST)
    admission = Admission(REQUEST, prompt(blocks), SALT, 10.0, 10.0)
    transfer = Inbound(admission, declaring, uncached(BlockStore(blocks * block_bytes)), window_mib * MIB)
    credit = granted(transfer, replace(offered(blocks), layout=declaring).to_proto()).credit_bytes
    for index in range(blocks):
        assert credit >= block_bytes
        reply = transfer.take(frame([b"a digest"], index, block_bytes=block_bytes), 0.0)
        credit += (reply.credit.credit_bytes if reply else 0) - block_bytes
    assert transfer.stage is Stage.RECEIVING


# ── messages that are refused ──


@dataclass(frozen=True)
class Wrong:
    name: str
    message: Callable[[], kv_pb2.PushRequest]
    reason: Refusal


def with_frame(change: Callable[[kv_pb2.Frame], object]) -> kv_pb2.PushRequest:
    message = frame(MADE[1:3], 1)
    change(message.frame)
    return message


def with_digest(digest: int) -> kv_pb2.PushRequest:
    message = commit(MADE)
    message.commit.digest = digest
    return message


# Each comes after block 0 has been verified, of 4.
WRONG_IN_MID_TRANSFER = [
    Wrong("foreign frame", lambda: frame(MADE[1:2], 1, FOREIGN), Refusal.FOREIGN_FRAME),
    Wrong("frame of a newer attempt", lambda: frame(MADE[1:2], 1, replace(REQUEST, attempt=9)), Refusal.FOREIGN_FRAME),
    Wrong("frame of another gateway", lambda: frame(MADE[1:2], 1, RequestId(0xB, 1, 0)), Refusal.FOREIGN_FRAME),
    Wrong("frame of an old attempt", lambda: frame(MADE[1:2], 1, OLD_ATTEMPT), Refusal.STALE_ATTEMPT),
    Wrong("frame without a request", lambda: with_frame(lambda f: f.ClearField("request")), Refusal.FOREIGN_FRAME),
    Wrong("duplicate", lambda: frame(MADE[:1], 0), Refusal.DUPLICATE_BLOCK),
    Wrong("overlap", lambda: frame(MADE[:2], 0), Refusal.DUPLICATE_BLOCK),
    Wrong("skipped block", lambda: frame(MADE[2:3], 2), Refusal.MISSING_BLOCK),
    Wrong("beyond the offer", lambda: frame(payloads(5)[1:], 1), Refusal.MALFORMED_FRAME),
    Wrong("far beyond the offer", lambda: frame(MADE[:1], 2**32 - 1), Refusal.MALFORMED_FRAME),
    Wrong("no blocks", lambda: with_frame(lambda f: f.ClearField("checksums")), Refusal.MALFORMED_FRAME),
    Wrong("no payload", lambda: with_frame(lambda f: f.ClearField("payload")), Refusal.MALFORMED_FRAME),
    Wrong("unequal blocks", lambda: with_frame(lambda f: setattr(f, "payload", b"x" * 31)), Refusal.MALFORMED_FRAME),
    Wrong("short blocks", lambda: with_frame(lambda f: setattr(f, "payload", b"x" * 30)), Refusal.MALFORMED_FRAME),
    Wrong("wrong declaration", lambda: with_frame(lambda f: setattr(f, "declared_bytes", 1)), Refusal.MALFORMED_FRAME),
    Wrong("damaged block", lambda: damaged(frame(MADE[1:3], 1)), Refusal.CHECKSUM_MISMATCH),
    Wrong("early commit", lambda: commit(MADE), Refusal.COUNT_MISMATCH),
    Wrong("commit of what came", lambda: commit(MADE[:1]), Refusal.COUNT_MISMATCH),
    Wrong("foreign commit", lambda: commit(MADE, FOREIGN), Refusal.FOREIGN_FRAME),
    Wrong("commit of an old attempt", lambda: commit(MADE, OLD_ATTEMPT), Refusal.STALE_ATTEMPT),
    Wrong("foreign cancel", lambda: cancel(FOREIGN), Refusal.FOREIGN_FRAME),
    Wrong("second offer", lambda: kv_pb2.PushRequest(offer=offered(BLOCKS).to_proto()), Refusal.OUT_OF_TURN),
    Wrong("empty message", kv_pb2.PushRequest, Refusal.OUT_OF_TURN),
]


@pytest.mark.parametrize("wrong", WRONG_IN_MID_TRANSFER, ids=lambda wrong: wrong.name)
def test_the_first_wrong_message_ends_the_transfer_by_name_and_frees_everything(wrong: Wrong) -> None:
    store = BlockStore(1000)
    transfer = receiving(store)
    transfer.take(frame(MADE[:1]), 0.0)
    assert reason_of(transfer.take(wrong.message(), 0.0)) is wrong.reason
    assert (transfer.stage, transfer.received, store.used_bytes, store.leases) == (Stage.REFUSED, None, 0, 0)
    assert transfer.refusal is not None
    assert transfer.refusal.reason is wrong.reason


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (commit(MADE[:3]), Refusal.COUNT_MISMATCH),
        (commit(MADE, count=5), Refusal.COUNT_MISMATCH),
        (with_digest(1), Refusal.DIGEST_MISMATCH),
        (commit([MADE[1], MADE[0], *MADE[2:]]), Refusal.DIGEST_MISMATCH),
        (frame(MADE[3:], 3), Refusal.DUPLICATE_BLOCK),
        (frame(MADE[:1], 4), Refusal.MALFORMED_FRAME),
    ],
)
def test_a_wrong_end_is_refused_though_all_blocks_came(message: kv_pb2.PushRequest, reason: Refusal) -> None:
    store = BlockStore(1000)
    transfer = receiving(store)
    transfer.take(frame(MADE), 0.0)
    assert reason_of(transfer.take(message, 0.0)) is reason
    assert (transfer.received, store.used_bytes) == (None, 0)


def test_more_than_the_credit_is_refused() -> None:
    half = MIB // 2
    made, store = payloads(16, half), BlockStore(8 * MIB)
    transfer = receiving(store, 16, half, window_bytes=4 * MIB)
    assert transfer.take(frame(made[:1], 0, block_bytes=half), 0.0) is not None
    assert transfer.take(frame(made[1:2], 1, block_bytes=half), 0.0) is None
    # Seven blocks may come until some credit returns, and these are eight.
    assert reason_of(transfer.take(frame(made[2:10], 2, block_bytes=half), 0.0)) is Refusal.CREDIT_EXCEEDED
    assert store.used_bytes == 0


def test_a_frame_is_checked_whole_before_any_of_it_is_written() -> None:
    store = BlockStore(1000)
    transfer = receiving(store)
    lease = transfer._reserved
    assert lease is not None
    spy = store.share(lease, FOREIGN, 100.0)
    assert reason_of(transfer.take(damaged(frame(MADE)), 0.0)) is Refusal.CHECKSUM_MISMATCH
    for index in range(BLOCKS):
        store.put(spy, index, b"still empty")


@pytest.mark.parametrize("message", [commit(MADE), frame(MADE[:1]), cancel(), kv_pb2.PushRequest()])
def test_after_the_commit_anything_is_out_of_turn_and_takes_nothing_back(message: kv_pb2.PushRequest) -> None:
    store = BlockStore(1000)
    transfer = receiving(store)
    transfer.take(frame(MADE), 0.0)
    transfer.take(commit(MADE), 0.0)
    assert reason_of(transfer.take(message, 0.0)) is Refusal.OUT_OF_TURN
    assert transfer.stage is Stage.COMMITTED
    assert transfer.received is not None
    assert store.used_bytes == 64


# ── ends from either side ──


def test_a_cancel_is_answered_when_everything_is_freed() -> None:
    store = BlockStore(1000)
    transfer = receiving(store)
    transfer.take(frame(MADE[:2]), 0.0)
    reply = transfer.take(cancel(), 0.0)
    assert reply is not None
    assert reply.HasField("cancelled")
    assert (transfer.stage, store.used_bytes) == (Stage.CANCELLED, 0)


def test_late_frames_after_an_end_from_this_side_are_answered_with_its_reason_and_never_written() -> None:
    store = BlockStore(64)
    transfer = receiving(store)
    transfer.take(frame(MADE[:2]), 0.0)
    transfer.refuse(Refusal.CANCELLED_ATTEMPT, "cancelled by its gateway")
    taken = store.reserve(FOREIGN, BLOCKS, 16, 10.0)
    for late in (frame(MADE[2:], 2), commit(MADE), cancel()):
        assert reason_of(transfer.take(late, 0.0)) is Refusal.CANCELLED_ATTEMPT
    for index in range(BLOCKS):
        store.put(taken, index, b"own")
    store.seal(taken)
    assert store.read(taken) == (b"own",) * BLOCKS


def test_what_was_refused_once_keeps_its_first_reason() -> None:
    transfer = receiving(BlockStore(1000))
    transfer.refuse(Refusal.LEASE_EXPIRED, "it came too late")
    transfer.refuse(Refusal.CANCELLED_ATTEMPT, "later still")
    assert reason_of(transfer.take(cancel(), 0.0)) is Refusal.LEASE_EXPIRED


def test_the_lease_of_what_was_committed_can_be_renewed_and_expires() -> None:
    store = BlockStore(1000)
    transfer = receiving(store)
    transfer.take(frame(MADE), 0.0)
    transfer.take(commit(MADE), 0.0)
    transfer.renew(25.0)
    assert store.expire(24.0) == ()
    assert len(store.expire(25.0)) == 2  # on what was cached, which is nothing here, and on what came
    with pytest.raises(LeaseEnded):
        transfer.renew(30.0)


MESSAGES = st.one_of(
    st.builds(lambda first, last: frame(MADE[first:last] or MADE[:1], first), st.integers(0, 3), st.integers(1, 4)),
    st.builds(lambda first: damaged(frame(MADE[first : first + 1], first)), st.integers(0, 3)),
    st.builds(lambda count: commit(MADE[:count]), st.integers(0, 4)),
    st.just(commit(MADE)),
    st.just(frame(MADE)),
    st.just(cancel()),
    st.just(kv_pb2.PushRequest()),
)


@settings(deadline=None)
@given(st.lists(MESSAGES, max_size=8))
def test_whatever_comes_only_the_whole_kv_is_ever_given_out_and_nothing_leaks(messages: list[kv_pb2.PushRequest]) -> None:
    store = BlockStore(1000)
    transfer = receiving(store)
    for message in messages:
        transfer.take(message, 0.0)
        held = transfer.stage in (Stage.RECEIVING, Stage.COMMITTED)
        assert store.used_bytes == (64 if held else 0)
        assert (transfer.received is not None) == (transfer.stage is Stage.COMMITTED)
        if transfer.received is not None:
            assert [bytes(payload) for payload in transfer.received.payloads] == MADE
    transfer.refuse(Refusal.CANCELLED_ATTEMPT, "the end of the test")
    transfer.close()
    assert (store.used_bytes, store.leases) == (0, 0)
