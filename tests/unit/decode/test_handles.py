"""The handle table, one rule at a time; its invariants over any interleaving are in test_handles_properties."""

import re

import pytest

from pdd.decode import events
from pdd.decode.actions import (
    AbortSeq,
    Action,
    AdmitKv,
    CancelKv,
    ExtendSeq,
    KeepOutput,
    OpenSeq,
    ReleaseKv,
    StopSeq,
    ThrottleSeq,
)
from pdd.decode.commands import Rules
from pdd.decode.handles import HandleTable
from pdd.engine.base import Aborted, EngineFault, Extended, Failed, Finished, FinishReason, Retained, Stopped
from pdd.identity import RequestId
from pdd.request_proto import RequestSpec
from pdd.sampling import SamplingParams
from pdd.transfer.base import Received, Refusal
from pdd.v1 import decode_pb2

MAIN = Rules("main", takes_handoff=True, decodes_on_commit=False, retains_output=True, context_tokens=64)
RELAY = Rules("relay", takes_handoff=False, decodes_on_commit=True, retains_output=False, context_tokens=64)
REQUEST = RequestId(5, 1)
SPEC = RequestSpec(REQUEST, (1, 2, 3), SamplingParams(max_tokens=10, seed=1), "salt", 1.0)
RECEIVED = Received(REQUEST, (b"block",), first_token=42, final=False)
FINAL = Received(REQUEST, (b"block",), first_token=42, final=True)
READY = events.kv_ready(1, 1)
OPENED = OpenSeq(7, SPEC, (b"block",))


def admitted(rules: Rules = MAIN) -> HandleTable:
    table = HandleTable(rules)
    assert table.admit(1, SPEC, 7) == [AdmitKv(1, SPEC)]
    return table


def opened(rules: Rules = MAIN) -> HandleTable:
    table = admitted(rules)
    table.ready(1, RECEIVED)
    return table


def error_of(actions: list[Action]) -> tuple[int, str]:
    """Code and text of the one error among the actions."""
    (error,) = [action.error for action in actions if isinstance(action, decode_pb2.ClosingEvent)]
    return error.code, error.message


def test_extends_queue_until_the_kv_is_whole_and_then_run_in_order() -> None:
    table = admitted()
    assert table.extend(1, 0, [42, 43], False) == []
    assert table.extend(1, 2, [44], True) == []
    assert table.ready(1, RECEIVED) == [READY, OPENED, ExtendSeq(7, 0, (42, 43), False), ExtendSeq(7, 2, (44,), True)]


def test_an_extend_on_an_open_handle_runs_at_once() -> None:
    table = opened()
    assert table.extend(1, 0, [42], False) == [ExtendSeq(7, 0, (42,), False)]
    assert table.extend(1, 1, [43], True) == [ExtendSeq(7, 1, (43,), True)]


def test_what_an_extend_asks_to_be_scored_is_scored_and_told() -> None:
    table = admitted()
    table.extend(1, 0, [42, 43], False, score=True)
    assert table.ready(1, RECEIVED)[-1] == ExtendSeq(7, 0, (42, 43), False, score=True)
    assert table.extend(1, 2, [44], True) == [ExtendSeq(7, 2, (44,), True, score=False)]
    told = table.extended(Extended(7, 2, 5, 0.5, scored_tokens=2, agreed_tokens=1))[0]
    assert isinstance(told, decode_pb2.OpeningEvent)
    assert (told.extended.scored_tokens, told.extended.agreed_tokens) == (2, 1)


def test_a_relay_decodes_from_the_commit() -> None:
    assert admitted(RELAY).ready(1, RECEIVED) == [READY, OPENED, ExtendSeq(7, 0, (42,), True)]


def test_a_throttle_that_came_early_is_applied_on_opening() -> None:
    table = admitted(RELAY)
    assert table.throttle(1, 0.05) == []
    assert ThrottleSeq(7, 0.05) in table.ready(1, RECEIVED)


def test_a_final_commit_opens_nothing_and_waits_for_the_gateway() -> None:
    table = admitted()
    table.extend(1, 0, [42], True)
    assert table.ready(1, FINAL) == [READY, ReleaseKv(REQUEST)]
    assert table.abort(1) == [events.aborted(1)]


def test_the_first_extended_releases_the_payloads_once() -> None:
    table = opened()
    first, second = Extended(7, 1, 4, 0.5), Extended(7, 3, 2, 0.1)
    assert table.extended(first) == [events.extended(1, first), ReleaseKv(REQUEST)]
    assert table.extended(second) == [events.extended(1, second)]


def test_a_closing_event_before_the_import_releases_the_payloads() -> None:
    fault = Failed(7, EngineFault("no room"))
    actions = opened().closed(fault)
    assert actions[0] == ReleaseKv(REQUEST)
    assert error_of(actions) == (decode_pb2.HANDLE_ERROR_CODE_ENGINE_FAILED, "no room")


@pytest.mark.parametrize(
    ("event", "farewell"),
    [
        (Stopped(7, 5), events.stopped(1, 5)),
        (Aborted(7), events.aborted(1)),
        (Finished(7, FinishReason.LENGTH, 9), events.engine_closed(1, Finished(7, FinishReason.LENGTH, 9))),
    ],
)
def test_the_engines_word_ends_an_open_handle(event: Stopped | Aborted | Finished, farewell: decode_pb2.ClosingEvent) -> None:
    table = opened()
    table.extended(Extended(7, 1, 1, 0.1))
    assert table.closed(event) == [farewell]
    assert len(table) == 0


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        (Refusal.CHECKSUM_MISMATCH, decode_pb2.HANDLE_ERROR_CODE_KV_REFUSED),
        (None, decode_pb2.HANDLE_ERROR_CODE_KV_REFUSED),
        (Refusal.LEASE_EXPIRED, decode_pb2.HANDLE_ERROR_CODE_LEASE_EXPIRED),
        (Refusal.NO_MEMORY, decode_pb2.HANDLE_ERROR_CODE_OVERLOADED),
    ],
)
def test_failed_kv_ends_the_handle_and_drops_its_queued_extends(reason: Refusal | None, code: int) -> None:
    table = admitted()
    table.extend(1, 0, [42], True)
    actions = table.kv_failed(1, reason, "why")
    assert len(actions) == 1
    assert error_of(actions) == (code, f"{reason.name if reason else 'SENDER_LOST'}: why")
    assert table.extend(1, 1, [43], False) == []  # crossed on the wire


def test_kv_that_outlives_its_lease_before_the_import_ends_an_open_handle() -> None:
    table = opened()
    assert table.kv_failed(1, Refusal.LEASE_EXPIRED, "late") == [AbortSeq(7)]
    assert error_of(table.closed(Aborted(7))) == (decode_pb2.HANDLE_ERROR_CODE_LEASE_EXPIRED, "LEASE_EXPIRED: late")


def test_kv_that_outlives_its_lease_while_the_engine_lets_go_changes_nothing() -> None:
    table = opened()
    table.abort(1)
    assert table.kv_failed(1, Refusal.LEASE_EXPIRED, "late") == []
    assert table.closed(Aborted(7)) == [events.aborted(1)]


class TestRecall:
    def test_before_the_kv_takes_back_every_queued_extend(self) -> None:
        table = admitted()
        table.extend(1, 0, [42], False)
        table.extend(1, 1, [43], True)
        assert table.recall(1) == [events.recalled(1)]
        assert table.ready(1, RECEIVED) == [READY, OPENED]

    def test_lets_the_handle_be_extended_again_from_index_0(self) -> None:
        table = admitted()
        table.extend(1, 0, [42], True)
        table.recall(1)
        assert table.extend(1, 0, [42, 43], True) == []
        assert table.ready(1, RECEIVED)[-1] == ExtendSeq(7, 0, (42, 43), True)

    def test_once_the_kv_is_whole_says_nothing(self) -> None:
        table = admitted()
        table.extend(1, 0, [42], True)
        table.ready(1, RECEIVED)
        assert table.recall(1) == []

    def test_of_a_handle_that_has_ended_or_is_ending_says_nothing(self) -> None:
        table = opened()
        table.abort(1)
        assert table.recall(1) == []
        table.closed(Aborted(7))
        assert table.recall(1) == []

    def test_is_nothing_for_a_relay(self) -> None:
        assert error_of(admitted(RELAY).recall(1))[0] == decode_pb2.HANDLE_ERROR_CODE_BAD_COMMAND


class TestRetained:
    OUTPUT = Retained(7, (1, 2, 3, 4), 0, (b"made",))
    KEPT = KeepOutput(REQUEST, "salt", (1, 2, 3, 4), 0, (b"made",))

    def test_output_is_kept_under_the_requests_salt(self) -> None:
        assert opened().retained(self.OUTPUT) == [self.KEPT]

    def test_an_abort_that_keeps_lets_the_engine_give_out_what_it_has(self) -> None:
        table = opened()
        assert table.abort(1, keep=True) == [StopSeq(7)]
        assert table.decoding(7) is None
        assert table.retained(self.OUTPUT) == [self.KEPT]
        assert table.closed(Stopped(7, 3)) == [ReleaseKv(REQUEST), events.aborted(1)]

    def test_an_answer_that_was_complete_before_its_abort_was_read_is_kept_as_well(self) -> None:
        table = opened()
        table.abort(1)
        assert table.retained(self.OUTPUT) == [self.KEPT]

    def test_output_of_a_handle_that_is_gone_is_dropped(self) -> None:
        table = opened()
        table.closed(Failed(7, EngineFault("broke")))
        assert table.retained(self.OUTPUT) == []

    def test_an_abort_that_keeps_is_any_abort_before_the_kv(self) -> None:
        assert admitted().abort(1, keep=True) == [CancelKv(REQUEST), events.aborted(1)]

    def test_an_abort_that_keeps_is_any_abort_on_a_relay(self) -> None:
        assert opened(RELAY).abort(1, keep=True) == [AbortSeq(7)]


class TestAbort:
    def test_before_the_kv_cancels_the_transfer(self) -> None:
        assert admitted().abort(1) == [CancelKv(REQUEST), events.aborted(1)]

    def test_while_open_is_answered_once_the_engine_has_let_go(self) -> None:
        table = opened()
        assert table.abort(1) == [AbortSeq(7)]
        assert table.abort(1) == []
        assert table.decoding(7) is None
        assert table.closed(Aborted(7)) == [ReleaseKv(REQUEST), events.aborted(1)]

    def test_is_answered_as_such_even_where_the_sequence_finished_first(self) -> None:
        table = opened()
        table.abort(1)
        assert table.closed(Finished(7, FinishReason.STOP, 3))[-1] == events.aborted(1)

    def test_of_an_ended_handle_is_answered_again(self) -> None:
        table = admitted()
        table.abort(1)
        assert table.abort(1) == [events.aborted(1)]

    def test_of_all_leaves_nothing(self) -> None:
        table = opened()
        table.admit(2, SPEC, 8)
        assert table.abort_all() == [AbortSeq(7), CancelKv(REQUEST), events.aborted(2)]
        table.closed(Aborted(7))
        assert len(table) == 0


class TestStop:
    def test_while_open_is_the_engines_to_answer(self) -> None:
        assert opened().stop(1) == [StopSeq(7)]

    def test_before_the_kv_ends_at_index_0(self) -> None:
        assert admitted().stop(1) == [CancelKv(REQUEST), events.stopped(1, 0)]

    def test_after_a_final_commit_ends_at_index_1(self) -> None:
        table = admitted()
        table.ready(1, FINAL)
        assert table.stop(1) == [events.stopped(1, 1)]


class TestRefusals:
    def test_an_unknown_handle_is_an_error(self) -> None:
        table = HandleTable(MAIN)
        for actions in (table.extend(9, 0, [1], False), table.recall(9), table.throttle(9, 1.0), table.stop(9), table.abort(9)):
            assert error_of(actions)[0] == decode_pb2.HANDLE_ERROR_CODE_UNKNOWN_HANDLE

    def test_a_live_handle_used_again_ends(self) -> None:
        table = admitted()
        actions = table.admit(1, SPEC, 8)
        assert actions[0] == CancelKv(REQUEST)
        assert error_of(actions)[0] == decode_pb2.HANDLE_ERROR_CODE_BAD_COMMAND

    def test_an_ended_handle_used_again_is_refused(self) -> None:
        table = admitted()
        table.abort(1)
        assert error_of(table.admit(1, SPEC, 8))[0] == decode_pb2.HANDLE_ERROR_CODE_BAD_COMMAND

    def test_a_relay_takes_no_handoff(self) -> None:
        code, text = error_of(admitted(RELAY).extend(1, 0, [42], True))
        assert code == decode_pb2.HANDLE_ERROR_CODE_BAD_COMMAND
        assert "a relay takes no handoff" in text

    @pytest.mark.parametrize(
        ("first_index", "ids", "text"),
        [(0, [], "ids: at least 1"), (1, [5], "first_index: 1, but the next index.* is 0"), (0, [5] * 11, "max_tokens is 10")],
    )
    def test_an_extend_that_does_not_fit_ends_the_handle(self, first_index: int, ids: list[int], text: str) -> None:
        table = opened()
        assert table.extend(1, first_index, ids, False) == [AbortSeq(7)]
        code, said = error_of(table.closed(Aborted(7)))
        assert code == decode_pb2.HANDLE_ERROR_CODE_BAD_COMMAND
        assert re.search(text, said)

    def test_an_extend_of_a_handle_that_decodes_ends_it(self) -> None:
        table = opened()
        table.extend(1, 0, [42], True)
        assert table.extend(1, 1, [43], False) == [AbortSeq(7)]

    def test_more_handles_than_the_bound_are_refused(self) -> None:
        table = HandleTable(MAIN, bound=1)
        table.admit(1, SPEC, 7)
        assert error_of(table.admit(2, SPEC, 8))[0] == decode_pb2.HANDLE_ERROR_CODE_OVERLOADED
