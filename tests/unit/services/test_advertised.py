from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from pdd.rpc.errors import StartupError
from services.advertised import advertised, reachable
from tests.eventually import eventually

RENEW_S = 0.001
OWN = "127.0.0.1:1"


class Lessor:
    """Gives the address it is told to, or is away."""

    def __init__(self) -> None:
        self.address: str | None = "wan:1"
        self.asked: list[tuple[str, float]] = []

    async def lease(self, own: str, patience_s: float) -> str:
        self.asked.append((own, patience_s))
        if self.address is None:
            raise StartupError("the relay is away")
        return self.address


async def asked_again(lessor: Lessor, times: int = 3) -> None:
    before = len(lessor.asked)
    await eventually(lambda: len(lessor.asked) >= before + times)


async def test_without_a_lease_an_instance_advertises_its_own_address() -> None:
    async with advertised(OWN, None) as place:
        assert place.address == OWN


@pytest.mark.parametrize(
    ("listening", "told"),
    [
        ("0.0.0.0:50051", "3f2a:50051"),
        ("[::]:50051", "3f2a:50051"),
        ("10.0.0.7:50051", "10.0.0.7:50051"),
        ("relay:50051", "relay:50051"),
    ],
)
def test_peers_are_told_the_host_of_an_instance_that_listens_on_every_address(listening: str, told: str) -> None:
    assert reachable(listening, "3f2a") == told


async def test_a_new_lease_is_advertised_and_an_old_one_kept_while_the_relay_is_away() -> None:
    lessor = Lessor()
    with capture_logs() as logs:
        async with advertised(OWN, lessor.lease, RENEW_S) as place:
            assert place.address == "wan:1"
            lessor.address = None
            await asked_again(lessor)
            assert place.address == "wan:1"
            lessor.address = "wan:2"
            await eventually(lambda: place.address == "wan:2")
            await asked_again(lessor)
    assert [entry["event"] for entry in logs] == [
        "the leased address can't be renewed, trying on",
        "the leased address can be renewed again",
        "the leased address has changed",
    ]
    assert lessor.asked[0][1] > 0
    assert set(lessor.asked[1:]) == {(OWN, 0.0)}


async def test_no_lease_at_the_start_is_an_error() -> None:
    lessor = Lessor()
    lessor.address = None
    with pytest.raises(StartupError, match="away"):
        async with advertised(OWN, lessor.lease, RENEW_S):
            pytest.fail("the body must not run")


async def test_an_error_of_the_service_comes_through_as_it_is() -> None:
    async def service() -> None:
        async with advertised(OWN, Lessor().lease, RENEW_S):
            raise StartupError("incompatible")

    with pytest.raises(StartupError, match="incompatible"):
        await service()
