"""The suite's own service, generated from echo.proto in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc

# Untyped, as everything that is generated at run time.
_messages, _services = grpc.protos_and_services("tests/conformance/echo.proto")

Request: Callable[..., Any] = _messages.Request
Reply: Callable[..., Any] = _messages.Reply
Stub: Callable[[Any], Any] = _services.EchoStub
METHODS = ("Get", "Watch", "Upload", "Talk")


def add_echo(server: Any, **behaviours: Callable[[Any, Any], Any]) -> None:
    """Serve the given methods; the others are not implemented."""
    servicer = _services.EchoServicer()
    for name, behaviour in behaviours.items():
        assert name in METHODS
        setattr(servicer, name, behaviour)
    _services.add_EchoServicer_to_server(servicer, server)


def numbers(replies: list[Any]) -> list[int]:
    return [reply.number for reply in replies]
