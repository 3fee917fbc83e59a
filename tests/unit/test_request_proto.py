from collections.abc import Callable

import pytest

from pdd.identity import RequestId
from pdd.request_proto import spec_from_proto
from pdd.v1 import decode_pb2, identity_pb2, prefill_pb2, sampling_pb2

Message = decode_pb2.Admit | prefill_pb2.StartPrefill
KINDS = [decode_pb2.Admit, prefill_pb2.StartPrefill]


def message(kind: type[Message]) -> Message:
    return kind(
        request=identity_pb2.RequestId(gateway=5, counter=1, attempt=2),
        prompt_ids=[1, 2, 3],
        sampling=sampling_pb2.SamplingParams(max_tokens=8, top_p=1, repetition_penalty=1),
        salt="tenant",
        lease_ms=1500,
    )


@pytest.mark.parametrize("kind", KINDS)
def test_a_good_announcement_becomes_a_spec(kind: type[Message]) -> None:
    spec = spec_from_proto(message(kind), 64)
    assert (spec.request, spec.prompt, spec.salt, spec.lease_s) == (RequestId(5, 1, 2), (1, 2, 3), "tenant", 1.5)
    assert spec.sampling.max_tokens == 8


def no_gateway(bad: Message) -> None:
    bad.request.gateway = 0


def no_counter(bad: Message) -> None:
    bad.request.counter = 0


def no_prompt(bad: Message) -> None:
    bad.ClearField("prompt_ids")


def long_prompt(bad: Message) -> None:
    bad.prompt_ids[:] = range(64)


def no_lease(bad: Message) -> None:
    bad.lease_ms = 0


def short_trace(bad: Message) -> None:
    bad.trace = bytes(23)


def bad_sampling(bad: Message) -> None:
    bad.sampling.temperature = 3


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("spoil", "field"),
    [
        (no_gateway, "request: gateway and counter"),
        (no_counter, "request: gateway and counter"),
        (no_prompt, "prompt_ids: at least 1"),
        (short_trace, "trace: 24 bytes or none, got 23"),
        (long_prompt, "prompt_ids: 64 tokens.*context of 64.*PDD_CONTEXT_TOKENS"),
        (no_lease, "lease_ms"),
        (bad_sampling, "sampling.temperature"),
    ],
)
def test_a_bad_announcement_is_refused_by_field(kind: type[Message], spoil: Callable[[Message], None], field: str) -> None:
    bad = message(kind)
    spoil(bad)
    with pytest.raises(ValueError, match=field):
        spec_from_proto(bad, 64)
