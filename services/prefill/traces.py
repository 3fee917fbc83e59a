"""What prefill did for one request that is traced, as spans: made of the events that its gateway is told.

Made by the session for each StartPrefill that is traced, and put between the job and its outbox. All spans are recorded with
Released, which is the job's last event.

    prefill.request                    StartPrefill → Released                       (child of the request's root)
    ├─ prefill.queue                   → computing begins; with a wait for blocks that another request makes
    ├─ prefill.compute                 → index 0 is sampled                          (links to the stage `prefill`)
    └─ transfer.relay, transfer.main   the offer → the target has committed          (link to the stages `relay` and `main`)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pdd.request_proto import RequestSpec
from pdd.tracing.context import TraceContext
from pdd.tracing.span import Attribute, SpanRecord
from pdd.tracing.tracer import Tracer
from pdd.v1 import kv_pb2, prefill_pb2
from services.prefill.commands import Target
from services.prefill.observer import TransferOutcome


@dataclass(slots=True)
class _Transfer:
    role: str
    told: dict[str, Attribute]
    start_s: float
    end_s: float | None = None  # None: it is under way
    error: str | None = None


@dataclass(slots=True)
class JobTrace:
    """Call it with each event. `emit` takes the event on; `now_s` is the loop's clock."""

    tracer: Tracer
    context: TraceContext  # of the request's root
    spec: RequestSpec
    targets: Sequence[Target]
    emit: Callable[[prefill_pb2.PrefillEvent], None]
    now_s: Callable[[], float]
    _began_s: float = field(init=False)
    _span_id: int = field(init=False)
    _transfers: dict[str, _Transfer] = field(init=False)
    _spans: list[SpanRecord] = field(default_factory=list, init=False)
    _error: str | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._began_s = began_s = self.now_s()
        self._span_id = self.tracer.new_span_id()
        self._transfers = {to.id: _Transfer(to.role, {"pdd.target": to.id}, began_s) for to in self.targets}

    def __call__(self, event: prefill_pb2.PrefillEvent) -> None:
        self._note(event, self.now_s())
        self.emit(event)

    def _note(self, event: prefill_pb2.PrefillEvent, now_s: float) -> None:
        match event.WhichOneof("event"):
            case "first_token":
                self._computed(event.first_token, now_s)
            case "wanted":
                self._wanted(event.wanted, now_s)
            case "transfer_done":
                self._committed(event.transfer_done, now_s)
            case "transfer_failed":
                self._failed(event.transfer_failed, now_s)
            case "failed":
                self._error = event.failed.message
            case "released":
                self._released(now_s)

    def _computed(self, first: prefill_pb2.FirstToken, now_s: float) -> None:
        began_s = max(self._began_s, now_s - first.compute_us / 1e6)
        told: dict[str, Attribute] = {
            "pdd.computed_tokens": first.computed_tokens,
            "pdd.cached_tokens": first.cached_tokens,
            "pdd.compute_ms": first.compute_us / 1000,
        }
        self._add("prefill.queue", self._began_s, began_s, {}, "prefill")
        self._add("prefill.compute", began_s, now_s, told, "prefill")

    def _wanted(self, wanted: prefill_pb2.TransferWanted, now_s: float) -> None:
        self._transfers[wanted.target].told |= {
            "pdd.missing_blocks": wanted.missing_blocks,
            "pdd.missing_bytes": wanted.missing_bytes,
            "pdd.offer_to_want_ms": round((now_s - self._began_s) * 1000, 3),
        }

    def _committed(self, done: prefill_pb2.TransferDone, now_s: float) -> None:
        transfer = self._transfers[done.target]
        transfer.start_s, transfer.end_s = max(self._began_s, now_s - done.offer_to_commit_us / 1e6), now_s
        transfer.told |= {
            "pdd.outcome": TransferOutcome.USED.value,
            "pdd.blocks": done.blocks,
            "pdd.bytes": done.bytes,
            "pdd.first_frame_to_commit_ms": done.first_frame_to_commit_us / 1000,
        }

    def _failed(self, failed: prefill_pb2.TransferFailed, now_s: float) -> None:
        transfer = self._transfers[failed.target]
        transfer.end_s, transfer.error = now_s, failed.message
        match failed.reason:
            case kv_pb2.REFUSAL_REASON_UNSPECIFIED:
                outcome = TransferOutcome.FAILED
            case kv_pb2.REFUSAL_REASON_BACKLOG:
                outcome = TransferOutcome.DROPPED
            case _:
                outcome = TransferOutcome.REFUSED
        transfer.told["pdd.outcome"] = outcome.value

    def _released(self, now_s: float) -> None:
        for transfer in self._transfers.values():
            told = {"pdd.outcome": TransferOutcome.CANCELLED.value} | transfer.told  # of a cancelled one nothing is told
            name = f"transfer.{transfer.role}" if transfer.role else "transfer"
            self._add(name, transfer.start_s, transfer.end_s or now_s, told, transfer.role, transfer.error)
        context, told = self.context, dict[str, Attribute]({"pdd.request": str(self.spec.request)})
        request = SpanRecord(
            "prefill.request",
            context.trace_id,
            self._span_id,
            context.span_id,
            self._began_s,
            now_s,
            told,
            error=self._error,
        )
        self.tracer.record((request, *self._spans))

    def _add(
        self, name: str, start_s: float, end_s: float, told: dict[str, Attribute], stage: str, error: str | None = None
    ) -> None:
        context = self.context
        links = (context.stage_id(stage),) if stage else ()
        own_id = self.tracer.new_span_id()
        self._spans.append(
            SpanRecord(name, context.trace_id, own_id, self._span_id, start_s, end_s, told, links=links, error=error)
        )
