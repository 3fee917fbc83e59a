"""Which transfers a receiver expects, and what it answers to the others.

Asked by `receiver` on every admission, offer and cancel. Owns admissions and tombstones. Never awaits or reads a clock.

An attempt is admitted at most once. When its admission ends, for whatever reason, a tombstone with that reason stays as long as
its lease, so that what comes late is refused by name. Of a request's attempts only the newest counts.

    admit ─► expected ─ offer ─► claimed ─► ended: a tombstone ─ lease ─► forgotten
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from pdd.identity import RequestId
from pdd.transfer.base import Refusal, TransferRefused


@dataclass(frozen=True, slots=True)
class Admission:
    """What the gateway said of an attempt. `prompt` is the whole prompt's token ids."""

    request: RequestId
    prompt: tuple[int, ...] = field(repr=False)
    salt: str
    lease_s: float
    expires_s: float


@dataclass(frozen=True, slots=True)
class Park:
    """The offer may have overtaken its admission: ask again when something was admitted, and at `until_s`."""

    until_s: float


@dataclass(frozen=True, slots=True)
class _Tombstone:
    reason: Refusal
    message: str
    expires_s: float


@dataclass(slots=True)
class AdmissionDesk:
    park_s: float = 1.0  # how long an unknown offer may wait for its admission
    max_parked: int = 256
    unknown_lease_s: float = 60.0  # how long the cancel of an attempt that was never admitted is remembered
    _admitted: dict[RequestId, Admission] = field(default_factory=dict, init=False)
    _claimed: set[RequestId] = field(default_factory=set, init=False)
    _ended: dict[RequestId, _Tombstone] = field(default_factory=dict, init=False)
    _newest: dict[tuple[int, int], int] = field(default_factory=dict, init=False)  # attempt by lineage

    def __len__(self) -> int:
        """Admissions that have not ended."""
        return len(self._admitted)

    def lookup(self, request: RequestId) -> Admission | None:
        return self._admitted.get(request)

    def admit(
        self, request: RequestId, prompt: tuple[int, ...], salt: str, lease_s: float, now_s: float
    ) -> tuple[Admission, RequestId | None]:
        """Expect an attempt. Also returns the older attempt that it outdates, which has ended with this.

        Raises TransferRefused where the attempt is outdated or has ended itself, ValueError where it is admitted already.
        """
        if request in self._admitted:
            raise ValueError(f"{request} is admitted already")
        self._check_newest(request)
        self._check_not_ended(request)
        older = self._outdated_by(request)
        if older is not None:
            self.end(older, Refusal.STALE_ATTEMPT, f"attempt {request.attempt} was admitted in place of {older}", now_s)
        self._newest[request.lineage] = request.attempt
        admission = Admission(request, prompt, salt, lease_s, now_s + lease_s)
        self._admitted[request] = admission
        return admission, older

    def offered(self, request: RequestId, offered_s: float, now_s: float, parked: int) -> Admission | Park:
        """Judge an offer that came at `offered_s`, while `parked` others wait. An admission is given out once.

        Raises TransferRefused.
        """
        self._check_newest(request)
        self._check_not_ended(request)
        admission = self._admitted.get(request)
        if admission is None:
            until_s = offered_s + self.park_s
            if now_s < until_s and parked < self.max_parked:
                return Park(until_s)
            waited = f"{now_s - offered_s:.1f} s, beside {parked} other offers without an admission"
            raise TransferRefused(Refusal.UNKNOWN_REQUEST, f"{request} was not admitted within {waited}: send Admit first")
        if request in self._claimed:
            raise TransferRefused(Refusal.OUT_OF_TURN, f"{request} is being transferred on another stream already")
        self._claimed.add(request)
        return admission

    def renew(self, request: RequestId, now_s: float) -> Admission:
        """Start an admission's lease anew. Raises KeyError where it has ended."""
        admission = self._admitted[request]
        self._admitted[request] = replace(admission, expires_s=now_s + admission.lease_s)
        return self._admitted[request]

    def cancel(self, request: RequestId, now_s: float) -> None:
        """End an attempt at its owner's wish; one that was not admitted is kept from ever being."""
        self.end(request, Refusal.CANCELLED_ATTEMPT, f"{request} was cancelled", now_s)

    def end(self, request: RequestId, reason: Refusal, message: str, now_s: float) -> None:
        """From now on, and as long as its lease, the attempt is refused for `reason`. What has ended keeps its first reason."""
        admission = self._admitted.pop(request, None)
        self._claimed.discard(request)
        if request not in self._ended:
            lease_s = self.unknown_lease_s if admission is None else admission.lease_s
            self._ended[request] = _Tombstone(reason, message, now_s + lease_s)

    def expire(self, now_s: float) -> tuple[Admission, ...]:
        """End the admissions whose lease has run out and return them; forget the tombstones whose time is over."""
        for request in [request for request, tombstone in self._ended.items() if tombstone.expires_s <= now_s]:
            del self._ended[request]
            if self._newest.get(request.lineage) == request.attempt:
                del self._newest[request.lineage]
        over = tuple(admission for admission in self._admitted.values() if admission.expires_s <= now_s)
        for admission in over:
            self.end(admission.request, Refusal.LEASE_EXPIRED, expiry_message(admission), now_s)
        return over

    def _check_newest(self, request: RequestId) -> None:
        newest = self._newest.get(request.lineage, request.attempt)
        if request.attempt < newest:
            message = f"{request} is outdated: attempt {newest} of the request was admitted"
            raise TransferRefused(Refusal.STALE_ATTEMPT, message)

    def _check_not_ended(self, request: RequestId) -> None:
        tombstone = self._ended.get(request)
        if tombstone is not None:
            raise TransferRefused(tombstone.reason, f"{request} has ended: {tombstone.message}")

    def _outdated_by(self, request: RequestId) -> RequestId | None:
        older = self._newest.get(request.lineage)
        if older is None:
            return None
        outdated = replace(request, attempt=older)
        return outdated if outdated in self._admitted else None


def expiry_message(admission: Admission) -> str:
    return f"the lease of {admission.lease_s} s on {admission.request} ran out: give it a longer one, or send the KV sooner"
