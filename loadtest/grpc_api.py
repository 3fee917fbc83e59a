"""The gRPC API, through `pdd.client`: it tells who made each token, so that the handoff can be seen.

Called by the users, which share one channel. gRPC has to be told of gevent before the first channel is made: `run` does so.
"""

from __future__ import annotations

from collections.abc import Callable

from loadtest.answer import AnswerFailed, Ask, Message, Reading
from pdd.client import Chat, Client, ClientError, Request, TokenIds
from pdd.client import Message as ChatMessage

ROUTE = "pdd.v1.Inference/Generate"


class GrpcApi:
    name = "grpc"

    def __init__(self, client: Client, clock: Callable[[], float]) -> None:
        """`client` is open, and asks each request once: a repeat would be a request that nobody has counted."""
        self._client = client
        self._clock = clock

    def route(self, _ask: Ask) -> str:
        return ROUTE

    def read(self, ask: Ask, reading: Reading) -> None:
        try:
            with self._client.generate(_request(ask)) as answer:
                for delta in answer:
                    reading.plan = answer.plan
                    if delta.tokens:
                        reading.deliver(delta.text, len(delta.tokens), self._clock(), delta.source, delta.tokens)
                reading.handed_over = bool(answer.result.timeline.handoff)
        except ClientError as error:
            raise AnswerFailed(f"gRPC {error.report.status.name} {error.report.code}".rstrip()) from error


def _request(ask: Ask) -> Request:
    messages = [ChatMessage(one.role, one.content) for one in ask.prompt if isinstance(one, Message)]
    ids = [one for one in ask.prompt if isinstance(one, int)]
    return Request(
        Chat(messages) if messages else TokenIds(ids),
        max_tokens=ask.max_tokens,
        ignore_eos=True,
        seed=ask.seed,
        expected_tokens=ask.expected_tokens,
    )
