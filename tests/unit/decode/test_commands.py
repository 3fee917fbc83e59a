import pytest

from pdd.decode.commands import Rules, spec_of_admit
from pdd.v1 import decode_pb2, identity_pb2, sampling_pb2

MAIN = Rules("main", takes_handoff=True, decodes_on_commit=False, retains_output=True, context_tokens=64)
RELAY = Rules("relay", takes_handoff=False, decodes_on_commit=True, retains_output=False, context_tokens=64)


def admit(*, decode_on_commit: bool) -> decode_pb2.Admit:
    return decode_pb2.Admit(
        handle=1,
        request=identity_pb2.RequestId(gateway=5, counter=1),
        prompt_ids=[1, 2, 3],
        sampling=sampling_pb2.SamplingParams(max_tokens=8, top_p=1, repetition_penalty=1),
        lease_ms=1500,
        decode_on_commit=decode_on_commit,
    )


@pytest.mark.parametrize("rules", [MAIN, RELAY], ids=["main", "relay"])
def test_each_role_takes_its_own_way_to_start(rules: Rules) -> None:
    assert spec_of_admit(admit(decode_on_commit=rules.decodes_on_commit), rules).prompt == (1, 2, 3)


@pytest.mark.parametrize(("rules", "need"), [(MAIN, "on a main it must be false"), (RELAY, "on a relay it must be true")])
def test_each_role_refuses_the_other_way(rules: Rules, need: str) -> None:
    with pytest.raises(ValueError, match=f"decode_on_commit: {need}"):
        spec_of_admit(admit(decode_on_commit=not rules.decodes_on_commit), rules)
