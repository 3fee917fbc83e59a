"""A client of the gateway's gRPC API: `AsyncClient` for asyncio, `Client` for plain code, with the same names.

Called by the `pdd` program and by whoever uses a mesh from Python; docs/clients.md shows how. Owns the channel to one gateway and
the deadline and repeats of each request. Asks again only where no token was delivered; never shows a message of the wire.
"""

from pdd.client.aio import AsyncAnswer, AsyncClient
from pdd.client.answer import Delta, Model, Result, Span, Timeline, Usage
from pdd.client.blocking import Answer, Client
from pdd.client.errors import (
    AnswerCancelled,
    ClientError,
    DeadlineExceeded,
    InvalidRequest,
    NoSuchModel,
    Overloaded,
    RequestFailed,
    Unavailable,
)
from pdd.client.request import Chat, Message, Request, Text, TokenIds
from pdd.client.retry import Retry

__all__ = [
    "Answer",
    "AnswerCancelled",
    "AsyncAnswer",
    "AsyncClient",
    "Chat",
    "Client",
    "ClientError",
    "DeadlineExceeded",
    "Delta",
    "InvalidRequest",
    "Message",
    "Model",
    "NoSuchModel",
    "Overloaded",
    "Request",
    "RequestFailed",
    "Result",
    "Retry",
    "Span",
    "Text",
    "Timeline",
    "TokenIds",
    "Unavailable",
    "Usage",
]
