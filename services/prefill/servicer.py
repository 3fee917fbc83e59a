"""Prefill's gRPC face: mapping only."""

from __future__ import annotations

from collections.abc import Sequence

import grpc.aio

from pdd.v1 import prefill_pb2, prefill_pb2_grpc
from services.prefill.worker import PrefillContext, Worker


class PrefillServicer(prefill_pb2_grpc.PrefillServicer):
    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    async def Attach(self, request_iterator: object, context: PrefillContext) -> None:  # type: ignore[override]
        await self._worker.attach(context)


def add_prefill(server: grpc.aio.Server, worker: Worker) -> Sequence[str]:
    """Add the service to a server and return its full name."""
    prefill_pb2_grpc.add_PrefillServicer_to_server(PrefillServicer(worker), server)
    return (prefill_pb2.DESCRIPTOR.services_by_name["Prefill"].full_name,)
