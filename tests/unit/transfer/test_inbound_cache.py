"""What a transfer takes from the prefix cache, and what it leaves there."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdd.identity import RequestId
from pdd.kv.cache import Prefix, PrefixCache, prefix_of
from pdd.kv.store import BlockStore
from pdd.transfer.admission import Admission
from pdd.transfer.base import Refusal
from pdd.transfer.inbound import Inbound, Stage
from pdd.transfer.joining import joined_by
from pdd.v1 import kv_pb2
from tests.unit.transfer.parts import (
    BLOCK_TOKENS,
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

BLOCKS = 4
MADE = payloads(8)
WINDOW_BYTES = 1 << 20


def caching(limit_blocks: int = 100, budget_blocks: int = 100) -> PrefixCache:
    return PrefixCache(BlockStore(16 * budget_blocks), BLOCK_TOKENS, 16 * limit_blocks)


def named(blocks: int) -> Prefix:
    return prefix_of(prompt(blocks), BLOCK_TOKENS, SALT)


def cached(cache: PrefixCache, blocks: int) -> PrefixCache:
    assert cache.keep_payloads(FOREIGN, named(blocks), 0, MADE[:blocks], 16) == blocks
    return cache


def accepted(cache: PrefixCache, blocks: int = BLOCKS, request: RequestId = REQUEST) -> Inbound:
    transfer = Inbound(Admission(request, prompt(blocks), SALT, 10.0, 10.0), layout(), cache, WINDOW_BYTES)
    assert transfer.accept(offered(blocks, request=request).to_proto()) is None
    assert transfer.stage is Stage.PENDING
    return transfer


def receiving(cache: PrefixCache, blocks: int = BLOCKS, request: RequestId = REQUEST) -> Inbound:
    transfer = accepted(cache, blocks, request)
    assert transfer.grant().HasField("want")
    return transfer


def test_only_what_is_not_cached_is_wanted_and_all_of_it_is_received() -> None:
    cache = cached(caching(), 3)
    transfer = accepted(cache, 5)
    want = transfer.grant().want
    assert (want.first_block, want.credit_bytes) == (3, 32)
    assert (transfer.missing_blocks, transfer.missing_bytes) == (2, 32)
    assert cache.store.leased_bytes == 5 * 16
    credit = transfer.take(frame(MADE[3:5], 3), 0.0)
    assert credit is not None
    assert credit.credit.verified_blocks == 5
    reply = transfer.take(commit(MADE[3:5]), 0.0)  # count and digest are of what was sent
    assert reply is not None
    assert reply.HasField("committed")
    assert transfer.received is not None
    assert [bytes(payload) for payload in transfer.received.payloads] == MADE[:5]
    assert cache.match(named(5)) == 5
    transfer.close()
    assert (cache.store.leased_bytes, cache.store.used_bytes, cache.store.leases) == (0, 5 * 16, 0)


def test_a_prompt_that_is_cached_whole_commits_without_a_frame() -> None:
    cache = cached(caching(budget_blocks=BLOCKS), BLOCKS)
    transfer = accepted(cache)
    want = transfer.grant().want
    assert (want.first_block, want.credit_bytes) == (BLOCKS, 0)
    reply = transfer.take(commit([]), 0.0)
    assert reply is not None
    assert reply.HasField("committed")
    assert transfer.received is not None
    assert [bytes(payload) for payload in transfer.received.payloads] == MADE[:BLOCKS]


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (frame(MADE[2:3], 2), Refusal.DUPLICATE_BLOCK),
        (frame(MADE[4:5], 4), Refusal.MISSING_BLOCK),
        (frame(MADE[3:6], 3), Refusal.MALFORMED_FRAME),
        (commit(MADE[:3]), Refusal.COUNT_MISMATCH),
    ],
)
def test_places_and_counts_are_those_of_the_missing_range(message: kv_pb2.PushRequest, reason: Refusal) -> None:
    transfer = receiving(cached(caching(), 3), 5)
    transfer.take(message, 0.0)
    assert transfer.refusal is not None
    assert transfer.refusal.reason is reason


def test_cached_blocks_are_pinned_from_the_grant_on() -> None:
    cache = cached(caching(limit_blocks=3), 3)
    transfer = receiving(cache, 4)
    assert cache.keep_payloads(FOREIGN, prefix_of((9,) * 12, BLOCK_TOKENS, SALT), 0, MADE[:3], 16) == 0
    transfer.take(frame(MADE[3:4], 3), 0.0)
    transfer.take(commit(MADE[3:4]), 0.0)
    assert transfer.received is not None
    assert [bytes(payload) for payload in transfer.received.payloads] == MADE[:4]


def test_a_reservation_makes_room_in_the_cache_and_not_of_what_it_builds_on() -> None:
    cache = cached(caching(budget_blocks=4), 2)
    assert cache.keep_payloads(FOREIGN, prefix_of((9,) * 8, BLOCK_TOKENS, SALT), 0, MADE[:2], 16) == 2
    assert accepted(cache).grant().want.first_block == 2


@pytest.mark.parametrize("end", ["cancelled", "refused from this side", "lost"])
def test_what_was_verified_before_an_end_that_is_not_the_senders_fault_is_cached(end: str) -> None:
    cache = caching()
    transfer = receiving(cache)
    transfer.take(frame(MADE[:3]), 0.0)
    match end:
        case "cancelled":
            transfer.take(cancel(), 0.0)
        case "refused from this side":
            transfer.refuse(Refusal.LEASE_EXPIRED, "too slow")
        case _:
            transfer.refuse(Refusal.CANCELLED_ATTEMPT, "the stream ended")
    assert (cache.match(named(BLOCKS)), transfer.received) == (3, None)
    assert (cache.store.leased_bytes, cache.store.used_bytes) == (0, 3 * 16)


@pytest.mark.parametrize(
    "wrong",
    [
        damaged(frame(MADE[3:4], 3)),
        frame(MADE[3:4], 3, FOREIGN),
        frame(MADE[3:4], 3, OLD_ATTEMPT),
        commit(MADE[:3]),
        commit(MADE[3::-1], count=4),
        kv_pb2.PushRequest(),
    ],
    ids=["damaged", "foreign", "stale", "short", "other digest", "empty"],
)
def test_of_a_sender_that_was_refused_nothing_is_cached(wrong: kv_pb2.PushRequest) -> None:
    cache = caching()
    transfer = receiving(cache)
    transfer.take(frame(MADE[:3]), 0.0)
    transfer.take(wrong, 0.0)
    transfer.take(cancel(), 0.0)
    transfer.refuse(Refusal.CANCELLED_ATTEMPT, "and then it was lost")
    assert (transfer.stage, cache.blocks, cache.store.used_bytes) == (Stage.REFUSED, 0, 0)


def test_a_pending_transfer_can_be_cancelled_and_nothing_else() -> None:
    transfer = accepted(caching())
    reply = transfer.take(cancel(), 0.0)
    assert reply is not None
    assert (reply.WhichOneof("kind"), transfer.stage) == ("cancelled", Stage.CANCELLED)
    other = accepted(caching())
    other.take(frame(MADE[:1]), 0.0)
    assert other.refusal is not None
    assert other.refusal.reason is Refusal.OUT_OF_TURN


# ── joining ──


def test_a_transfer_joins_the_one_before_it_that_brings_most_of_what_it_lacks() -> None:
    cache = cached(caching(), 1)
    short, long = receiving(cache, 2, FOREIGN), receiving(cache, 3, RequestId(7, 1))
    late = accepted(cache, 5)
    later = accepted(cache, 4, RequestId(7, 2))
    order = [short, long, late, later]
    assert joined_by(late, order) is long
    assert joined_by(later, order) is late  # which waits itself
    assert joined_by(long, order) is short
    long.refuse(Refusal.CANCELLED_ATTEMPT, "gone")
    assert joined_by(late, order) is short


def test_what_is_cached_is_not_waited_for() -> None:
    cache = cached(caching(), 3)
    first = receiving(cache, 3, FOREIGN)
    late = accepted(cache, 5)
    assert joined_by(late, [first, late]) is None


def test_without_a_cache_nobody_waits() -> None:
    cache = caching(limit_blocks=0)
    first, late = receiving(cache, 4, FOREIGN), accepted(cache, 4)
    assert joined_by(late, [first, late]) is None


def test_another_tenants_transfer_is_not_joined() -> None:
    cache = caching()
    first = receiving(cache, 4, FOREIGN)
    late = Inbound(Admission(REQUEST, prompt(4), "another", 10.0, 10.0), layout(), cache, WINDOW_BYTES)
    hashes = prefix_of(prompt(4), BLOCK_TOKENS, "another").hashes
    assert late.accept(replace(offered(4), block_hashes=hashes).to_proto()) is None
    assert joined_by(late, [first, late]) is None


STEPS = st.one_of(
    st.tuples(st.just("frame"), st.integers(0, 3), st.integers(1, 3)),
    st.tuples(st.sampled_from(["commit", "cancel", "refuse", "damage"]), st.just(0), st.just(0)),
)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(3, 8), st.lists(STEPS, max_size=6)), min_size=1, max_size=5), st.integers(0, 8))
def test_whatever_became_of_earlier_transfers_a_prompt_is_whole_or_not_there(
    transfers: list[tuple[int, list[tuple[str, int, int]]]], limit_blocks: int
) -> None:
    cache = caching(limit_blocks, budget_blocks=16)
    for number, (blocks, steps) in enumerate(transfers, 1):
        request = RequestId(5, number)
        transfer = receiving(cache, blocks, request)
        for kind, first, count in steps:
            match kind:
                case "frame":
                    transfer.take(frame(MADE[first : first + count], first, request), 0.0)
                case "commit":
                    transfer.take(commit(MADE[transfer.first_block : blocks], request), 0.0)
                case "cancel":
                    transfer.take(cancel(request), 0.0)
                case "damage":
                    transfer.take(damaged(frame(MADE[first : first + 1], first, request)), 0.0)
                case _:
                    transfer.refuse(Refusal.CANCELLED_ATTEMPT, "test")
        if transfer.received is not None:
            assert [bytes(payload) for payload in transfer.received.payloads] == MADE[:blocks]
        transfer.refuse(Refusal.CANCELLED_ATTEMPT, "the end of it")
        transfer.close()
        assert (cache.store.leased_bytes, cache.store.leases) == (0, 0)
        held = cache.pin(request, named(8), cache.match(named(8)), 1.0)
        assert [bytes(payload) for payload in cache.store.read(held)] == MADE[: held.blocks]
        cache.store.release(held)
