"""The stream to one prefill instance: prefill.proto's commands as calls, its frames as handoff events.

Used by `request` for its commands and by `peer`, which runs it. See `link` for what it owns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import grpc.aio

from gateway.generation import GenerationSpec
from gateway.handoff.events import HandoffEvent, PrefillProgress
from gateway.mesh.link import Link
from gateway.mesh.prefill_frames import prefill_events
from gateway.mesh.wiring import Wiring
from pdd.catalog.base import Registration
from pdd.identity import RequestId
from pdd.sampling_proto import sampling_to_proto
from pdd.v1 import identity_pb2, prefill_pb2, prefill_pb2_grpc


class PrefillLink(Link[prefill_pb2.PrefillCommand, prefill_pb2.PrefillFrame]):
    def __init__(self, registration: Registration, wiring: Wiring) -> None:
        super().__init__(registration, wiring)
        self.queued_tokens = 0  # prompt tokens to be computed, as prefill last said
        self._on_links = wiring.on_links

    def start(self, handle: int, request: RequestId, spec: GenerationSpec, targets: Sequence[Registration]) -> None:
        """Compute the prompt and send its KV to the targets, each of which has been sent its admission."""
        start = prefill_pb2.StartPrefill(
            handle=handle,
            request=request.to_proto(),
            prompt_ids=spec.prompt,
            sampling=sampling_to_proto(spec.sampling),
            salt=self._settings.tenant_salt,
            targets=[_target(to) for to in targets],
            lease_ms=round(self._settings.lease_s * 1000),
            trace=spec.trace,
        )
        self._send(prefill_pb2.PrefillCommand(start=start))

    def _attach(
        self, channel: grpc.aio.Channel
    ) -> grpc.aio.StreamStreamCall[prefill_pb2.PrefillCommand, prefill_pb2.PrefillFrame]:
        return prefill_pb2_grpc.PrefillStub(channel).Attach()

    def _hello(self, hello: identity_pb2.Hello) -> prefill_pb2.PrefillCommand:
        return prefill_pb2.PrefillCommand(hello=hello)

    def _detach(self) -> prefill_pb2.PrefillCommand:
        return prefill_pb2.PrefillCommand(detach=prefill_pb2.DetachPrefill())

    def _abort(self, handle: int, reason: str, keep: bool) -> prefill_pb2.PrefillCommand:
        return prefill_pb2.PrefillCommand(abort=prefill_pb2.AbortPrefill(handle=handle, reason=reason))

    def _events(self, frame: prefill_pb2.PrefillFrame) -> Mapping[int, Sequence[HandoffEvent]]:
        return prefill_events(frame, self._handles.targets)

    def _load_of(self, frame: prefill_pb2.PrefillFrame) -> float | None:
        if not frame.HasField("load"):
            return None
        if frame.load.links and self._on_links is not None:
            self._on_links(self.registration, frame.load.links)
        # Each chunk leaves less to do. More to do shows only that somebody has asked, not that anything is computed.
        before, self.queued_tokens = self.queued_tokens, frame.load.queued_tokens
        if self.queued_tokens < before:
            self.broadcast(PrefillProgress())
        return (frame.load.running + frame.load.waiting) / self.registration.slots


def _target(to: Registration) -> prefill_pb2.Target:
    return prefill_pb2.Target(instance=to.instance.to_proto(), kv_address=to.address, role=to.role.value)
