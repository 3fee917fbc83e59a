from collections.abc import Callable

import pytest

from pdd.identity import RequestId
from pdd.v1 import identity_pb2, prefill_pb2, sampling_pb2
from services.prefill.commands import Target, request_from_proto


def target(name: str) -> prefill_pb2.Target:
    return prefill_pb2.Target(instance=identity_pb2.InstanceRef(id=name, incarnation=9), kv_address=f"{name}:1")


def start() -> prefill_pb2.StartPrefill:
    return prefill_pb2.StartPrefill(
        handle=1,
        request=identity_pb2.RequestId(gateway=5, counter=1),
        prompt_ids=[1, 2, 3],
        sampling=sampling_pb2.SamplingParams(max_tokens=8, top_p=1, repetition_penalty=1),
        salt="tenant",
        targets=[target("relay-0"), target("main-0")],
        lease_ms=1500,
    )


def test_a_good_start_becomes_a_request() -> None:
    request = request_from_proto(start(), 64)
    assert (request.request, request.prompt, request.salt, request.lease_s) == (RequestId(5, 1), (1, 2, 3), "tenant", 1.5)
    assert request.targets == (Target("relay-0", "relay-0:1"), Target("main-0", "main-0:1"))


def no_request(message: prefill_pb2.StartPrefill) -> None:
    message.ClearField("request")


def no_prompt(message: prefill_pb2.StartPrefill) -> None:
    message.ClearField("prompt_ids")


def long_prompt(message: prefill_pb2.StartPrefill) -> None:
    message.prompt_ids[:] = range(64)


def no_lease(message: prefill_pb2.StartPrefill) -> None:
    message.lease_ms = 0


def bad_sampling(message: prefill_pb2.StartPrefill) -> None:
    message.sampling.temperature = 3


def no_targets(message: prefill_pb2.StartPrefill) -> None:
    message.ClearField("targets")


def three_targets(message: prefill_pb2.StartPrefill) -> None:
    message.targets.append(target("main-1"))


def same_target_twice(message: prefill_pb2.StartPrefill) -> None:
    message.targets[1].instance.id = "relay-0"


def no_address(message: prefill_pb2.StartPrefill) -> None:
    message.targets[1].kv_address = ""


@pytest.mark.parametrize(
    ("spoil", "field"),
    [
        (no_request, "request"),
        (no_prompt, "prompt_ids: at least 1"),
        (long_prompt, "prompt_ids.*context of 64"),
        (no_lease, "lease_ms"),
        (bad_sampling, "sampling.temperature"),
        (no_targets, "targets: 1 to 2"),
        (three_targets, "targets: 1 to 2"),
        (same_target_twice, "targets: relay-0 is named twice"),
        (no_address, "targets: each needs"),
    ],
)
def test_a_bad_start_is_refused_by_field(spoil: Callable[[prefill_pb2.StartPrefill], None], field: str) -> None:
    message = start()
    spoil(message)
    with pytest.raises(ValueError, match=field):
        request_from_proto(message, 64)
