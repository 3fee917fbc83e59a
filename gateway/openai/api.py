"""What the HTTP routes share: their dependencies, a request's label, and how a body is read.

Made once by whoever composes the gateway, used by every route. Owns nothing that changes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from aiohttp import web

from gateway.answer import Answers
from gateway.clients import label_or_new
from gateway.openai.errors import BodyTimeout
from gateway.prompting import InvalidRequest, Prompting

REQUEST_ID_HEADER = "x-request-id"
PLAN_HEADER = "x-pdd-plan"  # of an answer: how the mesh served it, and why
EXPECTED_HEADER = "x-pdd-expected-tokens"  # of a request: how long its answer is likely to be

_EXPECTED_DIGITS = 9

# Keys of what the middleware and a handler tell each other about one request.
LABEL = web.RequestKey("label", str)
ARRIVED_S = web.RequestKey("arrived_s", float)  # the loop's time
OUTCOME = web.RequestKey("outcome", int)  # where it differs from the status that was sent


@dataclass(frozen=True, slots=True)
class Api:
    prompting: Prompting
    answers: Answers
    new_id: Callable[[], str]  # unique, printable; for requests and answers
    unix_time_s: Callable[[], float]  # for `created`, which clients expect in wall-clock time
    write_deadline_s: float = 30.0  # time a client has to make room in a full connection
    body_deadline_s: float = 30.0  # time it has to send its body


async def read_body(request: web.Request, deadline_s: float) -> bytes:
    """Raises BodyTimeout, or aiohttp's HTTPRequestEntityTooLarge past the application's bound."""
    try:
        async with asyncio.timeout(deadline_s):
            return await request.read()
    except TimeoutError:
        raise BodyTimeout(f"The body did not arrive within {deadline_s:g} s.") from None


def label_of(request: web.Request, new_id: Callable[[], str]) -> str:
    return label_or_new(request.headers.get(REQUEST_ID_HEADER, ""), new_id)


def expected_tokens(request: web.Request) -> int | None:
    """The client's own guess at the length of its answer, by which a pipeline is chosen. Raises InvalidRequest."""
    given = request.headers.get(EXPECTED_HEADER)
    if given is None:
        return None
    if not (given.isascii() and given.isdigit() and len(given) <= _EXPECTED_DIGITS and int(given)):
        raise InvalidRequest(EXPECTED_HEADER, "must be a whole number of tokens, at least 1")
    return int(given)
