"""One request's trace as the gateway sees it: the root span, and the stages that the user waits through.

Called by `answer`, once for each traced request, when it has ended: all of it is made from what the mesh has noted anyhow, and
nothing is done with any token. What the instances do meanwhile they trace themselves, under the same root.

    request                                                       (root)
    ├─ route    arrival → planned and sent to its instances
    ├─ prefill  → output index 0
    ├─ relay    → the relay's last token
    ├─ switch   → main's first token, where it takes over from a relay
    ├─ main     → main's last token
    └─ finish   → the answer is handed over, everything in the mesh is let go of

Each stage begins where the one before ends, so together they are the request. Those that do not happen are left out; of a request
that is broken off, the stage that it was in lasts to its end, and is the last.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import NamedTuple, Self

from gateway.clients import ClientLeft
from gateway.generation import Generation, MeshError, Moments
from pdd.tracing.span import Attribute, SpanKind, SpanRecord
from pdd.tracing.tracer import Root, Tracer

ROOT = "request"


@dataclass(frozen=True, slots=True)
class Stage:
    name: str
    start_s: float
    end_s: float
    tokens: int = 0
    wait_s: float | None = None  # from its start to its first token


class _Mark(NamedTuple):
    name: str
    end_s: float = 0.0
    tokens: int = 0
    first_s: float | None = None  # when the first of them came


class RequestTrace:
    """A context around one request: leaving it records the spans. `generation` is put in once there is one."""

    def __init__(self, tracer: Tracer, root: Root, label: str, prompt_tokens: int, arrived_s: float) -> None:
        self.generation: Generation | None = None
        self._tracer = tracer
        self._root = root
        self.context = root.context
        self._label = label
        self._prompt_tokens = prompt_tokens
        self._arrived_s = arrived_s

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        end_s = asyncio.get_running_loop().time()
        moments = None if self.generation is None else self.generation.moments
        attributes = self._attributes(moments) | {"pdd.outcome": _outcome(moments, error)}
        found = tuple(stages(moments, self._arrived_s, end_s))
        self._tracer.record(spans(self._root, found, attributes, _why(error)))

    def _attributes(self, moments: Moments | None) -> dict[str, Attribute]:
        told: dict[str, Attribute] = {"pdd.label": self._label, "pdd.prompt_tokens": self._prompt_tokens}
        if moments is None or self.generation is None:
            return told
        timeline = moments.timeline
        return told | {
            "pdd.request": moments.request,
            "pdd.plan": self.generation.plan,
            "pdd.pipeline": timeline.pipeline,
            "pdd.handoff": timeline.handoff,
            "pdd.cached_tokens": moments.cached_tokens,
            "pdd.main_cached_tokens": timeline.main_cached_tokens,
            "pdd.completion_tokens": moments.output_tokens,
            "pdd.eager_tokens": timeline.eager_tokens,
            "pdd.wan_kv_bytes": timeline.wan_kv_bytes,
        }


def stages(moments: Moments | None, arrived_s: float, end_s: float) -> Iterator[Stage]:
    """The stages of a request that came at `arrived_s` and ended at `end_s`. None: it got no plan."""
    marks = list(_marks(moments))
    if moments is not None and moments.finished:
        marks.append(_Mark("finish", end_s))
    else:
        marks[-1] = marks[-1]._replace(end_s=end_s)
    start_s = arrived_s
    for mark in marks:
        stop_s = min(max(start_s, mark.end_s), end_s)
        wait_s = None if mark.first_s is None else max(0.0, mark.first_s - start_s)
        yield Stage(mark.name, start_s, stop_s, mark.tokens, wait_s)
        start_s = stop_s


def spans(root: Root, found: tuple[Stage, ...], attributes: dict[str, Attribute], error: str | None) -> tuple[SpanRecord, ...]:
    """The root and its stages; `found` has one at least."""
    context = root.context
    request = SpanRecord(
        ROOT,
        context.trace_id,
        context.span_id,
        root.parent_id,
        found[0].start_s,
        found[-1].end_s,
        attributes,
        kind=SpanKind.SERVER,
        error=error,
    )
    return (request, *(_stage_span(root, stage) for stage in found))


def _stage_span(root: Root, stage: Stage) -> SpanRecord:
    context, told = root.context, dict[str, Attribute]({"pdd.user_visible": True})
    if stage.wait_s is not None:
        told |= {"pdd.tokens": stage.tokens, "pdd.wait_ms": round(stage.wait_s * 1000, 3)}
    return SpanRecord(
        stage.name, context.trace_id, context.stage_id(stage.name), context.span_id, stage.start_s, stage.end_s, told
    )


def _marks(moments: Moments | None) -> Iterator[_Mark]:
    """Each stage that was begun, in order; the last may not have ended."""
    if moments is None:
        yield _Mark("route")
        return
    yield _Mark("route", moments.started_s)
    yield _Mark("prefill", moments.first_token_s or 0.0)
    relay, main = moments.relay, moments.main
    if relay is not None:
        yield _Mark("relay", relay.last_s, relay.tokens, relay.first_s)
    if main is not None:
        if relay is not None:
            yield _Mark("switch", main.first_s)
        yield _Mark("main", main.last_s, main.tokens, main.first_s)
    if relay is None and main is None and moments.first_token_s is not None and not moments.finished:
        yield _Mark("main" if moments.timeline.pipeline == "direct" else "relay")


def _outcome(moments: Moments | None, error: BaseException | None) -> str:
    if moments is not None and moments.finished:
        return "finished"
    return error.code.value if isinstance(error, MeshError) else "broken_off"


def _why(error: BaseException | None) -> str | None:
    match error:
        case None | asyncio.CancelledError() | GeneratorExit() | ClientLeft():
            return None  # a client may go away
        case MeshError():
            return f"{error.code.value}: {error}"
    return repr(error)
