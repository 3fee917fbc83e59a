"""`python -m pdd.rpc.probe HOST:PORT`: exit code 0 if the gRPC service there says that it is serving, 1 if not.

Run by the containers' health checks, every few seconds in each of them: it loads gRPC and nothing else, in a quarter of the time
that `pdd health` takes, which asks the same for people. Owns nothing.
"""

from __future__ import annotations

import sys

import grpc
from grpc_health.v1 import health_pb2

TIMEOUT_S = 3.0


def main(arguments: list[str]) -> str | None:
    """What is wrong, in a line; None where the service serves."""
    if len(arguments) != 1:
        return "give one address: python -m pdd.rpc.probe HOST:PORT"
    (address,) = arguments
    with grpc.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)]) as channel:
        # Not by the generated stub: its published types know no methods.
        check = channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
            response_deserializer=health_pb2.HealthCheckResponse.FromString,
        )
        try:
            answer = check(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_S)
        except grpc.RpcError as error:
            return f"{address}: {error.code().name}: {error.details()}"
    if answer.status != health_pb2.HealthCheckResponse.SERVING:
        return f"{address}: {health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)}"
    return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
