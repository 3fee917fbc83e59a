from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdd.identity import RequestId
from pdd.transfer.admission import Admission, AdmissionDesk, Park
from pdd.transfer.base import Refusal, TransferRefused

PROMPT = (1, 2, 3)
FIRST, SECOND = RequestId(1, 1, 0), RequestId(1, 1, 1)


def admit(desk: AdmissionDesk, request: RequestId = FIRST, now_s: float = 0.0, lease_s: float = 10.0) -> RequestId | None:
    _, older = desk.admit(request, PROMPT, "salt", lease_s, now_s)
    return older


def offer(desk: AdmissionDesk, request: RequestId = FIRST, now_s: float = 0.0, waited_s: float = 0.0) -> Admission | Park:
    return desk.offered(request, now_s - waited_s, now_s, parked=0)


def refusal(call: Callable[[], object]) -> Refusal:
    with pytest.raises(TransferRefused) as caught:
        call()
    return caught.value.reason


def test_an_admitted_offer_gets_its_admission_once() -> None:
    desk = AdmissionDesk()
    admit(desk)
    assert offer(desk) == Admission(FIRST, PROMPT, "salt", 10.0, 10.0)
    assert refusal(lambda: offer(desk)) is Refusal.OUT_OF_TURN


def test_an_unknown_offer_is_parked_for_a_second_and_then_refused() -> None:
    desk = AdmissionDesk(park_s=1.0)
    assert desk.offered(FIRST, 5.0, 5.0, parked=0) == Park(6.0)
    assert desk.offered(FIRST, 5.0, 5.9, parked=0) == Park(6.0)
    assert refusal(lambda: desk.offered(FIRST, 5.0, 6.0, parked=0)) is Refusal.UNKNOWN_REQUEST


def test_a_parked_offer_is_taken_when_its_admission_comes() -> None:
    desk = AdmissionDesk()
    assert isinstance(offer(desk), Park)
    admit(desk, now_s=0.5)
    assert isinstance(offer(desk, now_s=0.5, waited_s=0.5), Admission)


def test_no_more_offers_are_parked_than_the_bound() -> None:
    desk = AdmissionDesk(max_parked=2)
    assert isinstance(desk.offered(FIRST, 0.0, 0.0, parked=1), Park)
    assert refusal(lambda: desk.offered(FIRST, 0.0, 0.0, parked=2)) is Refusal.UNKNOWN_REQUEST


def test_a_newer_attempt_outdates_the_older_one() -> None:
    desk = AdmissionDesk()
    admit(desk, FIRST)
    assert admit(desk, SECOND) == FIRST
    assert refusal(lambda: offer(desk, FIRST)) is Refusal.STALE_ATTEMPT
    assert refusal(lambda: admit(desk, FIRST)) is Refusal.STALE_ATTEMPT
    assert isinstance(offer(desk, SECOND), Admission)
    assert len(desk) == 1


def test_an_older_attempt_stays_outdated_when_the_newer_one_has_ended() -> None:
    desk = AdmissionDesk()
    admit(desk, FIRST)
    admit(desk, SECOND)
    desk.cancel(SECOND, 1.0)
    assert refusal(lambda: offer(desk, FIRST, 2.0)) is Refusal.STALE_ATTEMPT


def test_a_newer_attempt_outdates_nothing_that_has_ended() -> None:
    desk = AdmissionDesk()
    admit(desk, FIRST)
    desk.cancel(FIRST, 0.0)
    assert admit(desk, SECOND) is None


def test_attempts_of_other_requests_and_gateways_do_not_meddle() -> None:
    desk = AdmissionDesk()
    admit(desk, SECOND)
    for other in (RequestId(1, 2, 0), RequestId(2, 1, 0)):
        assert admit(desk, other) is None
        assert isinstance(offer(desk, other), Admission)


def test_a_cancelled_attempt_is_refused_as_long_as_its_lease() -> None:
    desk = AdmissionDesk()
    admit(desk, lease_s=10.0)
    desk.cancel(FIRST, 3.0)
    desk.expire(12.9)
    assert refusal(lambda: offer(desk, now_s=12.9)) is Refusal.CANCELLED_ATTEMPT
    assert refusal(lambda: admit(desk, now_s=12.9)) is Refusal.CANCELLED_ATTEMPT
    desk.expire(13.0)
    assert isinstance(offer(desk, now_s=13.0), Park)


def test_a_cancel_that_overtakes_its_admission_still_counts() -> None:
    desk = AdmissionDesk(unknown_lease_s=60.0)
    desk.cancel(FIRST, 0.0)
    desk.expire(59.0)
    assert refusal(lambda: admit(desk, now_s=59.0)) is Refusal.CANCELLED_ATTEMPT


def test_an_attempt_that_was_refused_stays_refused_for_that_reason() -> None:
    desk = AdmissionDesk()
    admit(desk)
    desk.end(FIRST, Refusal.CHECKSUM_MISMATCH, "block 3", 0.0)
    desk.cancel(FIRST, 1.0)
    with pytest.raises(TransferRefused, match="block 3") as caught:
        offer(desk, now_s=2.0)
    assert caught.value.reason is Refusal.CHECKSUM_MISMATCH


def test_an_admission_expires_once_and_is_then_refused_by_that_name() -> None:
    desk = AdmissionDesk()
    admit(desk, lease_s=10.0)
    assert desk.expire(9.9) == ()
    assert [admission.request for admission in desk.expire(10.0)] == [FIRST]
    assert desk.expire(10.1) == ()
    assert refusal(lambda: offer(desk, now_s=11.0)) is Refusal.LEASE_EXPIRED


def test_a_renewed_lease_starts_anew() -> None:
    desk = AdmissionDesk()
    admit(desk, lease_s=10.0)
    assert desk.renew(FIRST, 8.0).expires_s == 18.0
    assert desk.expire(17.9) == ()
    assert len(desk.expire(18.0)) == 1


def test_an_attempt_is_admitted_once() -> None:
    desk = AdmissionDesk()
    admit(desk)
    with pytest.raises(ValueError, match="admitted already"):
        admit(desk)


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["admit", "offer", "cancel", "expire"]), st.integers(0, 2), st.integers(0, 3)), max_size=40
    )
)
def test_an_offer_is_only_ever_let_in_for_the_newest_living_attempt(events: list[tuple[str, int, int]]) -> None:
    desk, alive, newest, now_s = AdmissionDesk(), set[RequestId](), dict[int, int](), 0.0
    for kind, counter, attempt in events:
        request = RequestId(1, counter, attempt)
        now_s += 1.0
        match kind:
            case "admit":
                with suppress(TransferRefused, ValueError):
                    admit(desk, request, now_s, lease_s=1000.0)
                    alive = {other for other in alive if other.counter != counter} | {request}
                    newest[counter] = attempt
            case "cancel":
                desk.cancel(request, now_s)
                alive.discard(request)
            case "expire":
                assert desk.expire(now_s) == ()
            case "offer":
                with suppress(TransferRefused):
                    if isinstance(offer(desk, request, now_s), Admission):
                        assert request in alive
                        assert newest[counter] == attempt
        assert len(desk) == len(alive)


@settings(deadline=None)
@given(st.lists(st.integers(1, 5), max_size=20))
def test_nothing_is_remembered_for_ever(attempts: list[int]) -> None:
    desk = AdmissionDesk()
    for now_s, attempt in enumerate(attempts):
        request = RequestId(1, 1, attempt)
        if now_s % 3 == 2:
            desk.cancel(request, now_s)
        with suppress(TransferRefused, ValueError):
            admit(desk, request, now_s, lease_s=5.0)
    desk.expire(1000.0)
    desk.expire(2000.0)
    assert len(desk) == 0
    for attempt in range(6):
        assert isinstance(offer(desk, RequestId(1, 1, attempt), 2001.0), Park)
