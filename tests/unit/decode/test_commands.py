from collections.abc import Callable

import pytest

from pdd.decode.commands import Rules, admission_from_proto
from pdd.identity import RequestId
from pdd.v1 import decode_pb2, identity_pb2, sampling_pb2

MAIN = Rules("main", takes_handoff=True, decodes_on_commit=False, context_tokens=64)
RELAY = Rules("relay", takes_handoff=False, decodes_on_commit=True, context_tokens=64)


def admit() -> decode_pb2.Admit:
    return decode_pb2.Admit(
        handle=1,
        request=identity_pb2.RequestId(gateway=5, counter=1),
        prompt_ids=[1, 2, 3],
        sampling=sampling_pb2.SamplingParams(max_tokens=8, top_p=1, repetition_penalty=1),
        salt="tenant",
        lease_ms=1500,
    )


def test_a_good_admit_becomes_an_admission() -> None:
    admission = admission_from_proto(admit(), MAIN)
    assert (admission.request, admission.prompt, admission.salt, admission.lease_s) == (RequestId(5, 1), (1, 2, 3), "tenant", 1.5)
    assert admission.sampling.max_tokens == 8


def bad_request(message: decode_pb2.Admit) -> None:
    message.request.counter = 0


def bad_prompt(message: decode_pb2.Admit) -> None:
    del message.prompt_ids[:]


def long_prompt(message: decode_pb2.Admit) -> None:
    message.prompt_ids[:] = range(64)


def bad_lease(message: decode_pb2.Admit) -> None:
    message.lease_ms = 0


def bad_sampling(message: decode_pb2.Admit) -> None:
    message.sampling.top_p = 2


def decode_on_commit(message: decode_pb2.Admit) -> None:
    message.decode_on_commit = True


@pytest.mark.parametrize(
    ("spoil", "field"),
    [
        (bad_request, "request"),
        (bad_prompt, "prompt_ids"),
        (long_prompt, "prompt_ids.*context of 64"),
        (bad_lease, "lease_ms"),
        (bad_sampling, "sampling.top_p"),
        (decode_on_commit, "decode_on_commit: on a main it must be false"),
    ],
)
def test_a_bad_admit_is_refused_by_field(spoil: Callable[[decode_pb2.Admit], None], field: str) -> None:
    message = admit()
    spoil(message)
    with pytest.raises(ValueError, match=field):
        admission_from_proto(message, MAIN)


def test_a_relay_demands_decode_on_commit() -> None:
    with pytest.raises(ValueError, match="decode_on_commit: on a relay it must be true"):
        admission_from_proto(admit(), RELAY)
