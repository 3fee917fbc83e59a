import pytest

from pdd.v1 import identity_pb2, prefill_pb2
from services.prefill.commands import Target, targets_of_start


def start(*targets: tuple[str, str]) -> prefill_pb2.StartPrefill:
    return prefill_pb2.StartPrefill(
        targets=[
            prefill_pb2.Target(instance=identity_pb2.InstanceRef(id=name, incarnation=9), kv_address=address)
            for name, address in targets
        ]
    )


RELAY, MAIN, OTHER = ("relay-0", "a:1"), ("main-0", "b:1"), ("main-1", "c:1")


def test_one_or_two_targets_are_taken() -> None:
    assert targets_of_start(start(MAIN)) == (Target("main-0", "b:1"),)
    assert targets_of_start(start(RELAY, MAIN)) == (Target("relay-0", "a:1"), Target("main-0", "b:1"))


@pytest.mark.parametrize(
    ("targets", "text"),
    [
        ((), "targets: 1 to 2 of them, got 0"),
        ((RELAY, MAIN, OTHER), "targets: 1 to 2 of them, got 3"),
        ((RELAY, RELAY), "targets: relay-0 is named twice"),
        ((RELAY, ("main-0", "")), "targets: each needs"),
        ((("", "a:1"),), "targets: each needs"),
    ],
)
def test_bad_targets_are_refused(targets: tuple[tuple[str, str], ...], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        targets_of_start(start(*targets))


def test_a_target_has_the_role_of_a_decoder_or_none() -> None:
    message = start(RELAY)
    for role in ("", "relay", "main"):
        message.targets[0].role = role
        assert targets_of_start(message)[0].role == role
    message.targets[0].role = "prefill"
    with pytest.raises(ValueError, match="relay, main or not told, got 'prefill'"):
        targets_of_start(message)
