"""Why a request gave no answer: one exception for each thing that its caller can do about it.

Raised by both clients, from what gRPC and the gateway say. Every text is for a person and says what to do.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import grpc

REQUEST_ID_KEY = "x-request-id"
CODE_KEY = "x-pdd-code"
FIELD_KEY = "x-pdd-field"
RETRY_KEY = "grpc-retry-pushback-ms"  # gRPC's own name for it


@dataclass(frozen=True, slots=True)
class Report:
    """What is known of a call that failed."""

    status: grpc.StatusCode = grpc.StatusCode.UNKNOWN
    details: str = ""
    request_id: str = ""
    code: str = ""  # the gateway's, as docs/operations.md lists them; empty where the gateway has said nothing
    field: str = ""
    retry_after_s: float | None = None  # the gateway's wish; below 0: not again


class ClientError(Exception):
    """There is no answer, or no more of it."""

    retriable = False

    def __init__(self, message: str, report: Report) -> None:
        super().__init__(message)
        self.report = report

    @property
    def request_id(self) -> str:
        """What to look for in the gateway's log; empty where the gateway was not reached."""
        return self.report.request_id


class NoSuchModel(ClientError):
    pass


class InvalidRequest(ClientError):
    @property
    def field(self) -> str:
        """The field to change, as in inference.proto, for example `chat.messages[0].role`."""
        return self.report.field


class Overloaded(ClientError):
    retriable = True


class DeadlineExceeded(ClientError):
    pass


class Unavailable(ClientError):
    retriable = True


class AnswerCancelled(ClientError):
    """`cancel()` was called, or the client was left, while somebody read."""


class RequestFailed(ClientError):
    """None of the others: a fault of the mesh, or of what lies before it."""


def report_of(status: grpc.StatusCode, details: str | None, trailing: Iterable[tuple[str, str | bytes]] | None) -> Report:
    told = {key: value for key, value in trailing or () if isinstance(value, str)}
    return Report(
        status=status,
        details=details or "no reason given",
        request_id=told.get(REQUEST_ID_KEY, ""),
        code=told.get(CODE_KEY, ""),
        field=told.get(FIELD_KEY, ""),
        retry_after_s=_seconds(told.get(RETRY_KEY)),
    )


def client_error(report: Report, address: str, timeout_s: float) -> ClientError:
    """`address` and `timeout_s` are what the caller had asked with."""
    details = report.details
    match report.status:
        case grpc.StatusCode.CANCELLED:
            return AnswerCancelled(f"the request was cancelled, here or on its way ({details})", report)
        case grpc.StatusCode.NOT_FOUND:
            return NoSuchModel(f"{details} Leave `model` empty for the only one, or choose from list_models().", report)
        case grpc.StatusCode.INVALID_ARGUMENT:
            return InvalidRequest(details, report)
        case grpc.StatusCode.RESOURCE_EXHAUSTED if report.code == "overloaded":
            return Overloaded(f"the mesh is full ({details}): ask again later, or start more instances", report)
        case grpc.StatusCode.DEADLINE_EXCEEDED if report.code:
            return DeadlineExceeded(f"the mesh gave up ({details}): look at the link and the instances, then ask again", report)
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            message = f"no whole answer within {timeout_s:g} s: allow more with `timeout_s`, or bound it with `max_tokens`"
            return DeadlineExceeded(message, report)
        case grpc.StatusCode.UNAVAILABLE if report.code:
            return Unavailable(f"the mesh can't serve it ({details}): ask again, or see what /ready says is missing", report)
        case grpc.StatusCode.UNAVAILABLE if report.request_id:
            return Unavailable(f"the gateway at {address} was lost during the request ({details}): ask again", report)
        case grpc.StatusCode.UNAVAILABLE:
            message = f"no gateway at {address} ({details}): start a mesh with `pdd up`, or give the address of its gRPC API"
            return Unavailable(message, report)
    return RequestFailed(f"the request failed ({report.status.name}): {details}", report)


def _seconds(milliseconds: str | None) -> float | None:
    if milliseconds is None:
        return None
    # gRPC has it that what can't be read means "not again", as a negative number does.
    return int(milliseconds) / 1000 if milliseconds.isascii() and milliseconds.isdigit() else -1.0
