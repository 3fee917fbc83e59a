"""The gRPC server shell that every service runs in: bounds, keepalive, health checking, reflection, an orderly stop.

Called by each service's entry point. Owns the server and the health state of its services; knows nothing of what they do.
"""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager

import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from pdd.rpc.channel import KEEPALIVE_OPTIONS, MESSAGE_OPTIONS, ChannelOptions
from pdd.rpc.errors import ListenError

STOP_GRACE_S = 0.5  # time that running calls have to end by themselves

_SERVER_OPTIONS: ChannelOptions = (
    # Clients ping idle connections on purpose; the stock server answers that with GOAWAY "too_many_pings".
    ("grpc.http2.min_ping_interval_without_data_ms", 1000),
    ("grpc.http2.max_ping_strikes", 0),
)


class RunningServer:
    """A server that accepts calls. `address` is the "host:port" it is bound to, with the real port where 0 was asked for."""

    def __init__(self, address: str, health_servicer: health.aio.HealthServicer) -> None:
        self.address = address
        self._health = health_servicer

    async def set_serving(self, service: str, ok: bool) -> None:
        """What health checks of `service` (a full service name, or "" for the whole server) answer from now on."""
        status = health_pb2.HealthCheckResponse
        await self._health.set(service, status.SERVING if ok else status.NOT_SERVING)


@asynccontextmanager
async def serve(
    listen: str, register: Callable[[grpc.aio.Server], Sequence[str]], *, shares_port: bool = False
) -> AsyncIterator[RunningServer]:
    """Serve on `listen` ("host:port", port 0 for any) until the context is left.

    `register` adds servicers to the server and returns their full service names, which are healthy from the start. Leaving marks
    everything unhealthy, gives running calls STOP_GRACE_S and cancels the rest. With `shares_port` others that also share it may
    listen on a port that `shared_port` holds: each takes some of the connections. Raises ListenError.
    """
    host, _ = split_address(listen)
    # Unless it is asked for, a second process on the same port must fail, not take every other connection.
    options = [*MESSAGE_OPTIONS, *KEEPALIVE_OPTIONS, *_SERVER_OPTIONS, ("grpc.so_reuseport", int(shares_port))]
    server = grpc.aio.server(options=options)  # noqa: TID251
    names = register(server)
    health_servicer = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(health_servicer, server)
    reflection.enable_server_reflection((*names, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
    if not shares_port:
        _probe(listen)
    port = _bind(server, listen)
    running = RunningServer(f"{host}:{port}", health_servicer)
    await server.start()
    try:
        for name in names:
            await running.set_serving(name, True)
        yield running
    finally:
        await health_servicer.enter_graceful_shutdown()
        await server.stop(STOP_GRACE_S)


@contextmanager
def shared_port(listen: str) -> Iterator[str]:
    """Hold `listen` ("host:port", port 0 for any) for servers that share it, without taking connections; gives its real address.

    Raises ListenError where somebody else listens there.
    """
    _probe(listen)
    host, port = split_address(listen)
    with socket.socket(_family(host), socket.SOCK_STREAM) as holder:  # noqa: TID251
        try:
            # The address too: connections of a gateway that has just ended must not keep the next one from it.
            for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
                holder.setsockopt(socket.SOL_SOCKET, option, 1)
            holder.bind((host.strip("[]"), port))
        except OSError as error:
            raise _listen_error(listen, error) from error
        yield f"{host}:{holder.getsockname()[1]}"


def split_address(address: str) -> tuple[str, int]:
    """("host", port) of "host:port"; an IPv6 host keeps its brackets. Raises ListenError."""
    host, colon, port = address.rpartition(":")
    if not (colon and host and port.isascii() and port.isdigit() and int(port) <= 65535):
        raise ListenError(f"{address!r} is no address: give host:port, for example 127.0.0.1:50051, with port 0 for any")
    return host, int(port)


def _bind(server: grpc.aio.Server, listen: str) -> int:
    try:
        port = server.add_insecure_port(listen)
    except RuntimeError as error:
        raise ListenError(f"can't listen on {listen}: {error}") from error
    if port == 0:
        raise ListenError(f"can't listen on {listen}: gRPC gives no reason")
    return port


def _probe(listen: str) -> None:
    """Bind and let go of the address: gRPC tells "in use" from "not of this machine" only in a log line of its own."""
    host, port = split_address(listen)
    try:
        socket.create_server((host.strip("[]"), port), family=_family(host)).close()
    except OSError as error:
        raise _listen_error(listen, error) from error


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _listen_error(listen: str, error: OSError) -> ListenError:
    return ListenError(f"can't listen on {listen}: {error.strerror or error}")
