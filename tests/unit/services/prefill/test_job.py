from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdd.engine.base import Aborted, EngineFault, Failed, FinishReason, Prefilled, TokenOut
from pdd.transfer.base import Refusal
from pdd.transfer.outbound import TransferReport
from pdd.v1 import prefill_pb2, sampling_pb2
from services.prefill import events
from services.prefill.job import AbortSeq, Action, CancelTransfers, CompleteFeed, FailFeed, Job, Unpin

REPORT = TransferReport(blocks=3, bytes=300, offer_to_commit_s=0.2, first_frame_to_commit_s=0.1)
DONE = Prefilled(7, None, computed_tokens=50, queued_s=0.01, compute_s=0.2)
FIRST = TokenOut(7, 0, 42)
GONE = [Unpin(), events.released(1)]


def job() -> Job:
    return Job(1, 50, ["relay-0", "main-0"])


def kinds(actions: list[Action]) -> list[str]:
    """Each action's name; an event's is its kind."""
    return [
        str(action.WhichOneof("event")) if isinstance(action, prefill_pb2.PrefillEvent) else type(action).__name__
        for action in actions
    ]


def test_a_prefill_to_two_targets_is_released_after_the_last_commit() -> None:
    started = job()
    assert kinds(started.wanted("relay-0", 3, 300)) == ["wanted"]
    assert kinds(started.prefilled(DONE, FIRST)) == ["first_token", "CompleteFeed"]
    assert started.transferring
    assert kinds(started.transfer_done("relay-0", REPORT)) == ["transfer_done"]
    assert kinds(started.transfer_done("main-0", REPORT)) == ["transfer_done", "Unpin", "released"]


def test_first_token_tells_what_was_computed_and_cached() -> None:
    (told, _) = Job(1, 60, ["main-0"]).prefilled(DONE, FIRST)
    assert isinstance(told, prefill_pb2.PrefillEvent)
    first = told.first_token
    assert (first.token, first.computed_tokens, first.cached_tokens) == (42, 50, 10)
    assert (first.queued_us, first.compute_us) == (10_000, 200_000)
    assert first.finish == sampling_pb2.FINISH_REASON_UNSPECIFIED


def test_index_0_that_ends_the_request_makes_the_commit_final() -> None:
    actions = job().prefilled(Prefilled(7, FinishReason.LENGTH, 50, 0.0, 0.1), FIRST)
    assert CompleteFeed(42, final=True) in actions


def test_one_failed_target_leaves_the_other_alone() -> None:
    started = job()
    assert kinds(started.transfer_failed("main-0", Refusal.NO_MEMORY, "full")) == ["transfer_failed"]
    assert kinds(started.prefilled(DONE, FIRST)) == ["first_token", "CompleteFeed"]
    assert kinds(started.transfer_done("relay-0", REPORT)) == ["transfer_done", "Unpin", "released"]


def test_with_the_last_target_gone_computing_stops() -> None:
    started = job()
    started.transfer_failed("main-0", None, "lost")
    assert kinds(started.transfer_failed("relay-0", None, "lost")) == ["transfer_failed", "AbortSeq"]
    assert started.engine_closed(Aborted(7)) == GONE


def test_an_abort_while_computing_waits_for_engine_and_receivers() -> None:
    started = job()
    assert started.abort() == [AbortSeq(), CancelTransfers()]
    assert started.abort() == []
    assert started.engine_closed(Aborted(7)) == []
    assert started.transfer_cancelled("relay-0") == []
    assert started.transfer_cancelled("main-0") == GONE


def test_after_an_abort_how_things_end_is_no_news() -> None:
    started = job()
    started.abort()
    assert started.prefilled(DONE, FIRST) == []
    assert started.wanted("relay-0", 3, 300) == []
    assert started.transfer_failed("relay-0", Refusal.CANCELLED_ATTEMPT, "cancelled") == []
    assert kinds(started.transfer_done("main-0", REPORT)) == ["transfer_done", "Unpin", "released"]


def test_an_engine_that_fails_ends_the_transfers_through_the_feed() -> None:
    started = job()
    actions = started.engine_closed(Failed(7, EngineFault("no room")))
    assert kinds(actions) == ["failed", "FailFeed"]
    assert FailFeed("no room") in actions
    assert started.transfer_failed("relay-0", None, "no room") == []
    assert started.transfer_failed("main-0", None, "no room") == GONE


def test_a_failure_of_ours_is_told_once_and_ends_everything() -> None:
    started = job()
    assert kinds(started.fail(events.LEASE_EXPIRED, "late")) == ["failed", "AbortSeq", "CancelTransfers"]
    assert started.fail(events.BAD_COMMAND, "again") == []


STEPS = ("abort", "fail", "prefilled", "engine failed", "done", "failed", "cancelled", "wanted")


@pytest.mark.parametrize("targets", [["a"], ["a", "b"]])
@given(steps=st.lists(st.tuples(st.sampled_from(STEPS), st.sampled_from(("a", "b"))), max_size=12))
def test_every_job_is_released_exactly_once_and_last(targets: list[str], steps: list[tuple[str, str]]) -> None:
    started, log = Job(1, 50, targets), list[str]()
    sending, computing = list(targets), True

    def take(step: str, target: str) -> None:
        """Feed a step that can happen now; the others are skipped."""
        nonlocal computing
        if "released" in log:
            return
        if step == "abort":
            log.extend(kinds(started.abort()))
        elif step == "fail":
            log.extend(kinds(started.fail(events.LEASE_EXPIRED, "")))
        elif step in ("prefilled", "engine failed", "engine aborted"):
            if not computing:
                return
            computing = False
            if step == "prefilled":
                log.extend(kinds(started.prefilled(DONE, FIRST)))
            else:
                log.extend(kinds(started.engine_closed(Aborted(7) if step == "engine aborted" else Failed(7, EngineFault("")))))
        elif target in sending:
            if step == "wanted":
                log.extend(kinds(started.wanted(target, 1, 1)))
                return
            sending.remove(target)
            match step:
                case "done":
                    log.extend(kinds(started.transfer_done(target, REPORT)))
                case "failed":
                    log.extend(kinds(started.transfer_failed(target, None, "")))
                case _:
                    log.extend(kinds(started.transfer_cancelled(target)))

    for step, target in steps:
        take(step, target)
    take("abort", "")
    take("engine aborted", "")
    for target in targets:
        take("cancelled", target)
    assert log[-2:] == ["Unpin", "released"]
    assert log.count("released") == log.count("Unpin") == 1
    assert log.count("failed") <= 1
