"""Frames of decoders and prefill, read as events."""

import pytest

from gateway.generation import MeshErrorCode
from gateway.handoff.events import (
    Closed,
    Extended,
    Failed,
    Finished,
    FirstToken,
    HandoffEvent,
    KvReady,
    NewTokens,
    Stopped,
    TransferDone,
    TransferFailed,
    Wanted,
)
from gateway.mesh.decode_frames import decode_events, decoder_load
from gateway.mesh.prefill_frames import prefill_events
from gateway.mode import DecoderLoad
from pdd.catalog.base import Role
from pdd.engine.base import FinishReason
from pdd.sampling import TokenLogprobs
from pdd.v1 import decode_pb2, kv_pb2, prefill_pb2, sampling_pb2

MD = Role.MAIN


def test_a_decoders_frame_is_opening_events_tokens_closing_events() -> None:
    frame = decode_pb2.DecodeFrame(
        opening=[
            decode_pb2.OpeningEvent(handle=2, wanted=decode_pb2.Wanted(missing_blocks=3, missing_bytes=300)),
            decode_pb2.OpeningEvent(handle=2, kv_ready=decode_pb2.KvReady(blocks=3)),
            decode_pb2.OpeningEvent(handle=1, extended=decode_pb2.Extended(next_index=4, computed_tokens=9, compute_us=1500)),
        ],
        handle=[1, 3, 1],
        index=[4, 8, 5],
        token=[40, 80, 50],
        closing=[
            decode_pb2.ClosingEvent(
                handle=1, finished=decode_pb2.Finished(reason=sampling_pb2.FINISH_REASON_LENGTH, next_index=6)
            ),
            decode_pb2.ClosingEvent(handle=3, stopped=decode_pb2.Stopped(next_index=9)),
            decode_pb2.ClosingEvent(handle=4, aborted=decode_pb2.Aborted()),
        ],
    )
    assert decode_events(frame, MD) == {
        2: [Wanted(MD, 3, 300), KvReady(MD)],
        1: [Extended(MD, 4, 9, 0.0015), NewTokens(MD, 4, (40, 50)), Finished(MD, FinishReason.LENGTH, 6)],
        3: [NewTokens(MD, 8, (80,)), Stopped(MD, 9)],
        4: [Closed(MD)],
    }


def test_logprobs_find_their_tokens() -> None:
    logprobs = [sampling_pb2.TokenLogprobs(logprob=-float(n), top_tokens=[n], top_logprobs=[-float(n)]) for n in (1, 2)]
    frame = decode_pb2.DecodeFrame(handle=[1, 2, 1], index=[0, 0, 1], token=[5, 6, 7], logprobs_of=[0, 2], logprobs=logprobs)
    assert decode_events(frame, MD) == {
        1: [NewTokens(MD, 0, (5, 7), (TokenLogprobs(-1.0, ((1, -1.0),)), TokenLogprobs(-2.0, ((2, -2.0),))))],
        2: [NewTokens(MD, 0, (6,))],
    }


def test_indices_with_a_hole_are_kept_apart() -> None:
    frame = decode_pb2.DecodeFrame(handle=[1, 1, 1], index=[0, 2, 3], token=[5, 7, 8])
    assert decode_events(frame, MD) == {1: [NewTokens(MD, 0, (5,)), NewTokens(MD, 2, (7, 8))]}


def test_an_extend_says_how_many_tokens_it_scored() -> None:
    extended = decode_pb2.Extended(next_index=9, computed_tokens=12, compute_us=5000, scored_tokens=8, agreed_tokens=7)
    frame = decode_pb2.DecodeFrame(opening=[decode_pb2.OpeningEvent(handle=1, extended=extended)])
    assert decode_events(frame, MD) == {1: [Extended(MD, 9, 12, 0.005, 8, 7)]}


@pytest.mark.parametrize(
    ("code", "meaning"),
    [
        (decode_pb2.HANDLE_ERROR_CODE_KV_REFUSED, MeshErrorCode.KV_REFUSED),
        (decode_pb2.HANDLE_ERROR_CODE_OVERLOADED, MeshErrorCode.OVERLOADED),
        (decode_pb2.HANDLE_ERROR_CODE_LEASE_EXPIRED, MeshErrorCode.DEADLINE),
        (decode_pb2.HANDLE_ERROR_CODE_BAD_COMMAND, MeshErrorCode.ENGINE_FAILED),
    ],
)
def test_handle_errors(code: decode_pb2.HandleErrorCode.ValueType, meaning: MeshErrorCode) -> None:
    error = decode_pb2.HandleError(code=code, message="why")
    frame = decode_pb2.DecodeFrame(closing=[decode_pb2.ClosingEvent(handle=1, error=error)])
    assert decode_events(frame, MD) == {1: [Failed(MD, meaning, "why")]}


@pytest.mark.parametrize(
    "frame",
    [
        decode_pb2.DecodeFrame(handle=[1], index=[0, 1], token=[5]),
        decode_pb2.DecodeFrame(handle=[1], index=[0], token=[5], logprobs_of=[0]),
        decode_pb2.DecodeFrame(opening=[decode_pb2.OpeningEvent(handle=1)]),
        decode_pb2.DecodeFrame(closing=[decode_pb2.ClosingEvent(handle=1)]),
        decode_pb2.DecodeFrame(closing=[decode_pb2.ClosingEvent(handle=1, finished=decode_pb2.Finished(next_index=1))]),
    ],
)
def test_a_malformed_decode_frame_is_refused(frame: decode_pb2.DecodeFrame) -> None:
    with pytest.raises(ValueError, match=r".+"):
        decode_events(frame, MD)


def test_a_load_needs_slots() -> None:
    load = decode_pb2.DecodeLoad(running=1, waiting=2, slots=8, kv_used=0.5, step_us=12_500)
    assert decoder_load(load) == DecoderLoad(1, 2, 8, 0.5, 0.0125)
    with pytest.raises(ValueError, match="slots"):
        decoder_load(decode_pb2.DecodeLoad(running=1))


def prefill_frame(**event: object) -> prefill_pb2.PrefillFrame:
    return prefill_pb2.PrefillFrame(events=[prefill_pb2.PrefillEvent(handle=1, **event)])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("frame", "event"),
    [
        (
            prefill_frame(first_token=prefill_pb2.FirstToken(token=9, computed_tokens=20, cached_tokens=4, compute_us=2500)),
            FirstToken(9, None, None, 20, 4, 0.0025),
        ),
        (
            prefill_frame(first_token=prefill_pb2.FirstToken(token=9, finish=sampling_pb2.FINISH_REASON_STOP)),
            FirstToken(9, FinishReason.STOP),
        ),
        (
            prefill_frame(first_token=prefill_pb2.FirstToken(token=9, logprobs=sampling_pb2.TokenLogprobs(logprob=-1.0))),
            FirstToken(9, logprobs=TokenLogprobs(-1.0, ())),
        ),
        (prefill_frame(wanted=prefill_pb2.TransferWanted(target="m", missing_blocks=3, missing_bytes=300)), Wanted(MD, 3, 300)),
        (
            prefill_frame(
                transfer_done=prefill_pb2.TransferDone(
                    target="m", blocks=3, bytes=300, offer_to_commit_us=9_000_000, first_frame_to_commit_us=1_000_000
                )
            ),
            TransferDone(MD, 3, 300, 1.0),
        ),
        (  # a prompt under one block: no frame was sent
            prefill_frame(transfer_done=prefill_pb2.TransferDone(target="m", offer_to_commit_us=500_000)),
            TransferDone(MD, 0, 0, 0.5),
        ),
        (
            prefill_frame(
                transfer_failed=prefill_pb2.TransferFailed(
                    target="m", reason=kv_pb2.REFUSAL_REASON_CHECKSUM_MISMATCH, message="block 3"
                )
            ),
            TransferFailed(MD, "refused the transfer, CHECKSUM_MISMATCH: block 3"),
        ),
        (
            prefill_frame(transfer_failed=prefill_pb2.TransferFailed(target="m", message="reset")),
            TransferFailed(MD, "lost during the transfer: reset", MeshErrorCode.PEER_LOST),
        ),
        (
            prefill_frame(
                transfer_failed=prefill_pb2.TransferFailed(target="m", reason=kv_pb2.REFUSAL_REASON_NO_MEMORY, message="full")
            ),
            TransferFailed(MD, "refused the transfer, NO_MEMORY: full", MeshErrorCode.OVERLOADED),
        ),
        (
            prefill_frame(
                transfer_failed=prefill_pb2.TransferFailed(target="m", reason=kv_pb2.REFUSAL_REASON_LEASE_EXPIRED, message="late")
            ),
            TransferFailed(MD, "refused the transfer, LEASE_EXPIRED: late", MeshErrorCode.DEADLINE),
        ),
        (
            prefill_frame(failed=prefill_pb2.PrefillFailed(code=prefill_pb2.PREFILL_ERROR_CODE_OVERLOADED, message="full")),
            Failed(Role.PREFILL, MeshErrorCode.OVERLOADED, "full"),
        ),
        (prefill_frame(released=prefill_pb2.Released()), Closed(Role.PREFILL)),
    ],
)
def test_prefill_events(frame: prefill_pb2.PrefillFrame, event: HandoffEvent) -> None:
    assert prefill_events(frame, lambda _: {"m": MD}) == {1: [event]}


def test_a_transfer_to_a_foreign_target_fails_its_request_alone() -> None:
    for event in (
        {"wanted": prefill_pb2.TransferWanted(target="x")},
        {"transfer_done": prefill_pb2.TransferDone(target="x")},
        {"transfer_failed": prefill_pb2.TransferFailed(target="x")},
    ):
        (found,) = prefill_events(prefill_frame(**event), lambda _: {"m": MD})[1]
        assert isinstance(found, Failed)
        assert "'x'" in found.message


def test_a_malformed_prefill_event_is_refused() -> None:
    with pytest.raises(ValueError, match="event None of handle 1"):
        prefill_events(prefill_frame(), lambda _: {})
