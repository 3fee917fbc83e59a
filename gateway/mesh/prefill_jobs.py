"""What one request has under way at its prefill: the first job, and one more for a decoder that joined later.

Used by `request`. Owns the handles of the jobs, and makes of their events what the handoff machine hears of one prefill; the
rules are in `gateway.handoff.actions`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from gateway.generation import GenerationSpec
from gateway.handoff.events import Closed, Failed, FirstToken, HandoffEvent, Lost, TransferFailed
from gateway.mesh.prefill_link import PrefillLink
from pdd.catalog.base import Registration, Role
from pdd.identity import RequestId


@dataclass(frozen=True, slots=True, eq=False)
class _Job:
    targets: tuple[Role, ...]
    first: bool


class PrefillJobs:
    def __init__(
        self,
        link: Callable[[], PrefillLink],
        request: RequestId,
        spec: GenerationSpec,
        deliver: Callable[[Sequence[HandoffEvent]], None],
    ) -> None:
        """`link` gives the stream to prefill as it is now: it may have been opened anew between two jobs."""
        self._link = link
        self._request = request
        self._spec = spec
        self._deliver = deliver
        self._open: dict[_Job, tuple[PrefillLink, int]] = {}  # with its handle
        self._started = False
        self._answered = False  # index 0 is there

    def start(self, targets: Sequence[Registration]) -> None:
        """Have the prompt computed, or taken from the cache, and sent to decoders that were sent their admission."""
        roles = {target.instance.id: target.role for target in targets}
        job = _Job(tuple(roles.values()), first=not self._started)
        self._started = True
        link = self._link()
        handle = link.open(partial(self._heard, job), roles)
        self._open[job] = link, handle
        link.start(handle, self._request, self._spec, targets)

    def abort(self, reason: str) -> None:
        for link, handle in self._open.values():
            link.abort(handle, reason)

    def _heard(self, job: _Job, events: Sequence[HandoffEvent]) -> None:
        for event in events:  # one by one: the next job may be started on what is told, before this one's Closed is looked at
            told = tuple(self._told(job, event))
            if told:
                self._deliver(told)

    def _told(self, job: _Job, event: HandoffEvent) -> Iterator[HandoffEvent]:
        match event:
            case FirstToken() if self._answered:
                pass
            case FirstToken():
                self._answered = True
                yield event
            case Failed(code=code, message=message) if not job.first or self._answered:
                yield from (TransferFailed(role, message, code) for role in job.targets)
            case Closed() | Lost():
                # A stream that is lost takes all jobs with it, and each of them hears so.
                self._open.pop(job, None)
                if not self._open:
                    yield event
            case _:
                yield event
