"""Errors in the shape OpenAI's clients know: `{"error": {"message", "type", "param", "code"}}`.

Called by the middleware (before the first byte of an answer) and by the event stream (after it). Decides status, type and code of
whatever went wrong; never logs or sends.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from aiohttp import web

from gateway.generation import MeshError, MeshErrorCode
from gateway.prompting import InvalidRequest, UnknownModel

INVALID = "invalid_request_error"
SERVER = "server_error"
RATE_LIMIT = "rate_limit_error"

CLIENT_LEFT = 499  # no status a client ever sees: how a request counts whose client went away

_MESH_STATUS = {
    MeshErrorCode.NO_INSTANCE: 503,
    MeshErrorCode.PEER_LOST: 502,
    MeshErrorCode.KV_REFUSED: 502,
    MeshErrorCode.ENGINE_FAILED: 500,
    MeshErrorCode.OVERLOADED: 429,
    MeshErrorCode.DEADLINE: 504,
}


@dataclass(frozen=True, slots=True)
class ErrorReply:
    status: int
    message: str
    type: str
    param: str | None = None
    code: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def body(self) -> dict[str, object]:
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}


class BadRequest(Exception):
    """A body that does not follow the schema. `param` is the field's path, None where there is no field to name."""

    def __init__(self, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class BodyTimeout(Exception):
    """The client did not send its body in time."""


@contextmanager
def fields_named(renamed: Mapping[str, str]) -> Iterator[None]:
    """Give fields that have other names inside the gateway the names that the client wrote."""
    try:
        yield
    except InvalidRequest as error:
        raise InvalidRequest(renamed.get(error.field, error.field), str(error), error.code) from error


def reply_for(error: Exception) -> ErrorReply:
    match error:
        case BadRequest():
            return ErrorReply(400, str(error), INVALID, error.param, error.code)
        case InvalidRequest():
            return ErrorReply(400, f"{error.field}: {error}", INVALID, error.field, error.code)
        case UnknownModel():
            return ErrorReply(404, str(error), INVALID, "model", "model_not_found")
        case MeshError():
            kind = RATE_LIMIT if error.code is MeshErrorCode.OVERLOADED else SERVER
            return ErrorReply(_MESH_STATUS[error.code], str(error), kind, None, error.code.value, _retry_after(error))
        case BodyTimeout():
            return ErrorReply(408, str(error), INVALID, None, "request_timeout", {"Connection": "close"})
        case web.RequestPayloadError():
            return ErrorReply(400, f"The body can't be read: {error}", INVALID, headers={"Connection": "close"})
        case web.HTTPException():
            return _http_reply(error)
    return ErrorReply(500, "The gateway failed in a way it does not know; its log has the cause.", SERVER, None, "internal_error")


def _retry_after(error: MeshError) -> Mapping[str, str]:
    return {} if error.retry_after_s is None else {"Retry-After": str(error.retry_after_s)}


def _http_reply(error: web.HTTPException) -> ErrorReply:
    match error:
        case web.HTTPNotFound():
            return ErrorReply(404, "There is no such route here.", INVALID, None, "unknown_url")
        case web.HTTPMethodNotAllowed():
            allowed = ", ".join(sorted(error.allowed_methods))
            message = f"{error.method} is not allowed here; use {allowed}."
            return ErrorReply(405, message, INVALID, None, "method_not_allowed", {"Allow": allowed})
        case web.HTTPRequestEntityTooLarge():
            return ErrorReply(413, f"The body is too large. {error.text}", INVALID, None, "request_too_large")
    return ErrorReply(error.status, error.reason, INVALID if error.status < 500 else SERVER)
