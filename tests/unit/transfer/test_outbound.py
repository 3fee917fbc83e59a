from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdd.kv.cache import PrefixCache
from pdd.kv.layout import SIM_DIGEST
from pdd.kv.store import BlockStore
from pdd.kv.wire import WireFrame
from pdd.transfer.admission import Admission
from pdd.transfer.base import Refusal, TransferLost, TransferRefused
from pdd.transfer.feed import BlockFeed
from pdd.transfer.inbound import Inbound
from pdd.transfer.messages import decode_push, encode_push, kind_of
from pdd.transfer.outbound import Outbound, Stage, TransferReport
from pdd.v1 import kv_pb2
from tests.unit.transfer.parts import FIRST_TOKEN, REQUEST, SALT, layout, offered, payloads, prompt

BLOCKS = 4
MIB = 1 << 20
MADE = payloads(BLOCKS)


def want(credit_bytes: int = 1000, first_block: int = 0) -> kv_pb2.PushReply:
    return kv_pb2.PushReply(want=kv_pb2.Want(first_block=first_block, credit_bytes=credit_bytes))


def credit(credit_bytes: int) -> kv_pb2.PushReply:
    return kv_pb2.PushReply(credit=kv_pb2.Credit(credit_bytes=credit_bytes))


def refused(reason: int) -> kv_pb2.PushReply:
    return kv_pb2.PushReply(refused=kv_pb2.Refused(reason=reason, message="no"))  # type: ignore[arg-type]


COMMITTED = kv_pb2.PushReply(committed=kv_pb2.Committed())
CANCELLED = kv_pb2.PushReply(cancelled=kv_pb2.Cancelled())


def outbound(blocks: int = BLOCKS, block_bytes: int = 16) -> Outbound:
    return Outbound(offered(blocks, block_bytes), BlockFeed())


def sending(blocks: int = BLOCKS, block_bytes: int = 16, credit_bytes: int = 1000) -> Outbound:
    transfer = outbound(blocks, block_bytes)
    transfer.next_message(0.0)
    transfer.take_reply(want(credit_bytes), 0.0)
    return transfer


def written(transfer: Outbound) -> kv_pb2.PushRequest:
    """The message that is to be written now, which is no frame."""
    message = transfer.next_message(0.0)
    assert isinstance(message, kv_pb2.PushRequest)
    return message


def frame_of(transfer: Outbound) -> WireFrame:
    message = transfer.next_message(0.0)
    assert isinstance(message, WireFrame)
    return message


def kinds(transfer: Outbound, now_s: float = 0.0) -> list[str]:
    """The kinds of all messages that can be written now."""
    found = []
    while (message := transfer.next_message(now_s)) is not None:
        found.append(str(kind_of(message)))
    return found


def test_the_offer_goes_out_before_any_block_exists() -> None:
    transfer = outbound()
    offer = written(transfer).offer
    assert (offer.request, offer.prompt_tokens, len(offer.block_hashes)) == (REQUEST.to_proto(), 19, 4)
    assert (offer.wire_format, offer.sender.id) == ("dense.f16", "prefill-0")
    assert kinds(transfer) == []


def test_blocks_are_sent_as_they_are_made_and_committed_when_complete() -> None:
    transfer = sending()
    assert kinds(transfer) == []
    transfer.feed.append(MADE[:3])
    assert kinds(transfer) == ["frame"]
    transfer.feed.append(MADE[3:])
    assert kinds(transfer) == ["frame"]
    transfer.feed.complete(FIRST_TOKEN, final=True)
    end = written(transfer).commit
    assert (end.block_count, end.first_token, end.final) == (4, FIRST_TOKEN, True)
    assert kinds(transfer) == []


def test_the_report_counts_what_was_sent_and_both_times() -> None:
    transfer = outbound()
    transfer.next_message(1.0)
    transfer.take_reply(want(), 2.0)
    transfer.feed.append(MADE)
    transfer.feed.complete(FIRST_TOKEN, final=False)
    assert kinds(transfer, 3.0) == ["frame", "commit"]
    transfer.take_reply(COMMITTED, 7.0)
    assert transfer.report == TransferReport(blocks=4, bytes=64, offer_to_commit_s=6.0, first_frame_to_commit_s=4.0)
    assert transfer.stage is Stage.ENDED


def test_a_prompt_under_one_block_is_committed_without_frames() -> None:
    transfer = sending(0, credit_bytes=0)
    assert kinds(transfer) == []
    transfer.feed.complete(FIRST_TOKEN, final=False)
    assert kinds(transfer) == ["commit"]
    transfer.take_reply(COMMITTED, 5.0)
    assert transfer.report == TransferReport(blocks=0, bytes=0, offer_to_commit_s=5.0, first_frame_to_commit_s=0.0)


def test_only_what_the_receiver_wants_is_sent() -> None:
    transfer = outbound()
    transfer.next_message(0.0)
    transfer.take_reply(want(first_block=3), 0.0)
    assert (transfer.missing_blocks, transfer.missing_bytes) == (1, 16)
    transfer.feed.append(MADE)
    frame = frame_of(transfer)
    assert (frame.head.first_block, frame.payload) == (3, (MADE[3],))


def test_frames_stay_within_the_target_size_and_the_credit() -> None:
    transfer = sending(8, MIB // 2, credit_bytes=3 * MIB // 2)
    transfer.feed.append(payloads(8, MIB // 2))
    assert [len(frame_of(transfer).payload) for _ in range(2)] == [2, 1]
    assert kinds(transfer) == []
    transfer.take_reply(credit(MIB // 2), 0.0)
    assert kinds(transfer) == ["frame"]
    transfer.take_reply(credit(MIB // 2 - 1), 0.0)
    assert kinds(transfer) == []  # a block does not fit


@pytest.mark.parametrize("reason", list(Refusal))
def test_a_refusal_ends_it_with_the_receivers_reason(reason: Refusal) -> None:
    transfer = sending()
    transfer.take_reply(refused(reason.value), 0.0)
    transfer.feed.append(MADE)
    assert kinds(transfer) == []
    assert isinstance(transfer.error, TransferRefused)
    assert transfer.error.reason is reason


def test_a_reason_of_a_newer_protocol_ends_it_too() -> None:
    transfer = sending()
    transfer.take_reply(refused(999), 0.0)
    assert isinstance(transfer.error, TransferLost)
    assert transfer.stage is Stage.ENDED


@pytest.mark.parametrize(
    "reply", [COMMITTED, CANCELLED, want(), kv_pb2.PushReply()], ids=["committed", "cancelled", "want", "empty"]
)
def test_an_answer_out_of_turn_is_never_taken_for_success(reply: kv_pb2.PushReply) -> None:
    transfer = sending()
    transfer.take_reply(reply, 0.0)
    assert transfer.report is None
    assert isinstance(transfer.error, TransferLost)


def test_a_receiver_that_wants_more_than_was_offered_is_not_served() -> None:
    transfer = outbound()
    transfer.next_message(0.0)
    transfer.take_reply(want(first_block=5), 0.0)
    assert isinstance(transfer.error, TransferLost)


@pytest.mark.parametrize("reply", [CANCELLED, COMMITTED, refused(Refusal.CANCELLED_ATTEMPT.value)])
def test_a_cancel_is_told_once_and_ends_with_the_receivers_answer(reply: kv_pb2.PushReply) -> None:
    transfer = sending()
    transfer.feed.append(MADE)
    transfer.cancel("given up")
    assert kinds(transfer) == ["cancel"]
    transfer.cancel("given up again")
    transfer.take_reply(credit(16), 0.0)
    assert kinds(transfer) == []
    assert transfer.stage is Stage.CANCELLING
    transfer.take_reply(reply, 0.0)
    assert (transfer.stage, transfer.report) == (Stage.ENDED, None)


def test_what_was_never_offered_needs_no_cancel() -> None:
    transfer = outbound()
    transfer.cancel("given up")
    assert (transfer.stage, kinds(transfer)) == (Stage.ENDED, [])


def complete_early(feed: BlockFeed) -> None:
    feed.append(MADE[:3])
    feed.complete(FIRST_TOKEN, final=False)


@pytest.mark.parametrize(
    ("go_wrong", "error", "complaint"),
    [
        (lambda feed: feed.fail(RuntimeError("the engine broke")), RuntimeError, "engine broke"),
        (complete_early, ValueError, "3 blocks were made of a prompt with 4"),
        (lambda feed: feed.append([*MADE, b"one too many"]), ValueError, "5 blocks were made of a prompt with 4"),
        (lambda feed: feed.append([b"short", *MADE[1:]]), ValueError, "equally long"),
    ],
)
def test_a_feed_that_goes_wrong_cancels_the_transfer(
    go_wrong: Callable[[BlockFeed], None], error: type[Exception], complaint: str
) -> None:
    transfer = sending()
    go_wrong(transfer.feed)
    assert kinds(transfer)[-1] == "cancel"
    transfer.take_reply(CANCELLED, 0.0)
    assert transfer.report is None
    assert transfer.error is not None
    with pytest.raises(error, match=complaint):
        raise transfer.error


def test_a_feed_that_fails_before_the_answer_cancels_too() -> None:
    transfer = outbound()
    assert kinds(transfer) == ["offer"]
    transfer.feed.fail(RuntimeError("engine"))
    assert kinds(transfer) == ["cancel"]
    transfer.take_reply(want(), 0.0)  # it crossed the cancel
    assert kinds(transfer) == []
    transfer.take_reply(CANCELLED, 0.0)
    assert isinstance(transfer.error, RuntimeError)


def test_the_first_cause_is_kept() -> None:
    transfer = sending()
    transfer.feed.fail(RuntimeError("engine"))
    assert kinds(transfer) == ["cancel"]
    transfer.lost("the link")
    assert isinstance(transfer.error, RuntimeError)


@settings(deadline=None)
@given(
    steps=st.lists(st.integers(1, 5), min_size=1, max_size=8),
    block_bytes=st.sampled_from([16, MIB // 2, MIB, 9 * MIB]),
    window_mib=st.integers(1, 8),
    eager=st.booleans(),
)
def test_both_ends_together_always_finish(steps: list[int], block_bytes: int, window_mib: int, eager: bool) -> None:
    """Whatever the pace of the engine, the size of a block and the window: no deadlock, and the same bytes on both sides."""
    total = sum(steps)
    declaring = layout(block_bytes, SIM_DIGEST)
    made = payloads(total)  # short ones that stand for more
    cache = PrefixCache(BlockStore(total * block_bytes), declaring.block_tokens, 0)
    sender = Outbound(replace(offered(total), layout=declaring), BlockFeed())
    receiver = Inbound(Admission(REQUEST, prompt(total), SALT, 9.0, 9.0), declaring, cache, window_mib * MIB)
    assert receiver.accept(written(sender).offer) is None
    sender.take_reply(receiver.grant(), 0.0)
    replies: list[kv_pb2.PushReply] = []

    def exchange() -> None:
        while (message := sender.next_message(1.0)) is not None or replies:
            reply = receiver.take(decode_push(encode_push(message)), 0.0) if message is not None else None
            if reply is not None:
                replies.append(reply)
            if replies and (eager or message is None):
                sender.take_reply(replies.pop(0), 2.0)

    for step in steps:
        sender.feed.append(made[len(sender.feed) : len(sender.feed) + step])
        exchange()
    sender.feed.complete(FIRST_TOKEN, final=False)
    exchange()
    assert receiver.received is not None
    assert b"".join(receiver.received.payloads) == b"".join(made)
    assert sender.report is not None
    assert (sender.report.blocks, sender.report.bytes, sender.link.backlog_bytes) == (total, total * block_bytes, 0)


def test_the_link_is_told_what_moves() -> None:
    transfer = outbound()
    transfer.next_message(0.0)
    transfer.feed.append(MADE[:3])
    assert transfer.link.transfers == []
    transfer.take_reply(want(first_block=1), 0.0)
    link = transfer.link
    assert (link.backlog_bytes, transfer.ready_bytes, link.transfers) == (48, 32, [transfer])
    assert kinds(transfer) == ["frame"]
    transfer.take_reply(credit(16), 1.0)
    assert (link.backlog_bytes, transfer.ready_bytes) == (32, 16)
    transfer.take_reply(credit(1000), 1.1)  # more than was sent
    assert (link.backlog_bytes, transfer.ready_bytes) == (16, 0)
    transfer.feed.append(MADE[3:])
    transfer.feed.complete(FIRST_TOKEN, final=False)
    assert kinds(transfer, 2.0) == ["frame", "commit"]
    transfer.take_reply(COMMITTED, 3.0)
    assert (link.backlog_bytes, link.transfers) == (0, [])


@pytest.mark.parametrize("end", ["refused", "lost", "cancelled"])
def test_a_transfer_that_ends_badly_waits_for_its_link_no_more(end: str) -> None:
    transfer = sending()
    transfer.feed.append(MADE[:3])
    assert kinds(transfer) == ["frame"]
    match end:
        case "refused":
            transfer.take_reply(refused(Refusal.NO_MEMORY.value), 1.0)
        case "lost":
            transfer.lost("the line")
        case _:
            transfer.cancel("test")
            transfer.take_reply(CANCELLED, 1.0)
    transfer.lost("and again")
    assert (transfer.link.backlog_bytes, transfer.link.transfers) == (0, [])


def test_a_receiver_that_says_pending_is_waited_for() -> None:
    transfer = outbound()
    transfer.next_message(0.0)
    pending = kv_pb2.PushReply(pending=kv_pb2.Pending(transfer=REQUEST.to_proto()))
    for _ in range(3):
        transfer.take_reply(pending, 1.0)
        assert (transfer.stage, kinds(transfer)) == (Stage.OFFERED, [])
    transfer.take_reply(want(first_block=4), 2.0)
    assert transfer.stage is Stage.SENDING
    transfer.take_reply(pending, 3.0)
    assert isinstance(transfer.error, TransferLost)


def test_a_transfer_of_which_the_receiver_lacks_nothing_commits_without_a_frame() -> None:
    transfer = outbound()
    transfer.next_message(0.0)
    transfer.take_reply(want(credit_bytes=0, first_block=4), 0.0)
    transfer.feed.append(MADE)
    transfer.feed.complete(FIRST_TOKEN, final=False)
    end = written(transfer).commit
    assert (end.block_count, end.first_token) == (0, FIRST_TOKEN)
    transfer.take_reply(COMMITTED, 5.0)
    assert transfer.report == TransferReport(blocks=0, bytes=0, offer_to_commit_s=5.0, first_frame_to_commit_s=0.0)
