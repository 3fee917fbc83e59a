"""`pdd health`: asks one service how it is; the containers' health checks run it."""

from __future__ import annotations

from typing import Annotated

import grpc
import typer
from grpc_health.v1 import health_pb2

from pdd.cli.console import CommandError, plain_console, run
from pdd.rpc.channel import open_channel

_TIMEOUT_S = 3.0


def health(address: Annotated[str, typer.Argument(help="host:port of a gRPC service of the mesh.")]) -> None:
    """Exit with 0 if the gRPC service at ADDRESS says that it is serving, with 1 if not."""
    run(_health(address))


async def _health(address: str) -> None:
    async with open_channel(address) as channel:
        # Not by the generated stub: its published types know no methods.
        check = channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
            response_deserializer=health_pb2.HealthCheckResponse.FromString,
        )
        try:
            answer = await check(health_pb2.HealthCheckRequest(), timeout=_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            raise CommandError(f"{address}: {error.code().name}: {error.details()}") from error
    status = health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)
    if answer.status != health_pb2.HealthCheckResponse.SERVING:
        raise CommandError(f"{address}: {status}")
    plain_console().print(f"{address}: {status}")
