from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler

import pytest

from loadtest.answer import AnswerFailed, Ask, ClientLeft, Message, Reading
from loadtest.http_api import CHAT_ROUTE, COMPLETIONS_ROUTE, HttpApi
from pdd.engine.sim.vocabulary import sim_card
from tests.unit.loadtest.servers import answering, start_stream, write_chunk

DEADLINE_S = 10.0
TOKENIZER = sim_card(1024).tokenizer
ASK = Ask((1, 2, 3), max_tokens=2, seed=1)


def event(**choice: object) -> bytes:
    return b"data: %b\n\n" % json.dumps({"choices": [{"index": 0, **choice}]}).encode()


def usage(tokens: int) -> bytes:
    return b"data: %b\n\n" % json.dumps({"choices": [], "usage": {"completion_tokens": tokens}}).encode()


class Clock:
    """Stands still until the server moves it."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Watched(Reading):
    """Lets the server know of each delivery."""

    def __init__(self, ask: Ask) -> None:
        super().__init__(ask, 0.0)
        self.delivered = threading.Semaphore(0)

    def deliver(self, *told: object, **more: object) -> None:
        super().deliver(*told, **more)  # type: ignore[arg-type]
        self.delivered.release()


def test_a_slow_servers_first_token_is_seen_when_it_comes_however_short_it_is() -> None:
    """The server says nothing more until the client has seen what was said: one that waits for a full buffer never ends."""
    clock, reading = Clock(), Watched(ASK)

    def answer(handler: BaseHTTPRequestHandler) -> None:
        start_stream(handler, "pipeline=direct; code=forced")
        for at_s, text in ((5.0, " a"), (7.5, " the")):
            clock.now_s = at_s
            write_chunk(handler, event(text=text))
            assert reading.delivered.acquire(timeout=DEADLINE_S)
        clock.now_s = 100.0
        write_chunk(handler, event(text="", finish_reason="length") + usage(2) + b"data: [DONE]\n\n")
        write_chunk(handler, b"")

    with answering(answer) as url:
        HttpApi(url, "pdd-sim", TOKENIZER, clock, DEADLINE_S).read(ASK, reading)
    assert reading.ttft_s == 5.0
    assert reading.gaps_s == [2.5]
    assert reading.tokens == 2
    assert reading.pipeline == "direct"
    assert reading.ids == tuple(TOKENIZER.encode(" a the").ids)


def test_the_gateways_count_of_tokens_holds_where_an_event_has_several() -> None:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        start_stream(handler, "")
        write_chunk(handler, event(delta={"role": "assistant", "content": "a b c"}) + usage(3) + b"data: [DONE]\n\n")
        write_chunk(handler, b"")

    ask = Ask((Message("user", "hello"),), max_tokens=3, seed=1)
    reading = read(answer, ask)
    assert reading.tokens == 3
    assert reading.text == "a b c"


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b'data: {"error": {"code": "peer_lost"}}\n\n', "in the stream: peer_lost"),
        (event(text=" a"), "the stream ended without \\[DONE\\]"),
    ],
)
def test_a_stream_that_does_not_end_well_is_an_error(body: bytes, text: str) -> None:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        start_stream(handler, "")
        write_chunk(handler, body)
        write_chunk(handler, b"")

    with pytest.raises(AnswerFailed, match=text):
        read(answer, ASK)


def test_a_status_is_an_error_with_its_code() -> None:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        body = b'{"error": {"code": "overloaded", "message": "full"}}'
        handler.send_response(429)
        handler.send_header("content-length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    with pytest.raises(AnswerFailed, match="HTTP 429 overloaded"):
        read(answer, ASK)


def test_no_gateway_is_an_error() -> None:
    with answering(lambda _: None) as url:
        pass
    with pytest.raises(AnswerFailed, match="ConnectionRefusedError"):
        HttpApi(url, "pdd-sim", TOKENIZER, Clock(), DEADLINE_S).read(ASK, Reading(ASK, 0.0))


def test_a_client_that_leaves_closes_its_connection() -> None:
    closed = threading.Event()

    def answer(handler: BaseHTTPRequestHandler) -> None:
        start_stream(handler, "")
        write_chunk(handler, event(text=" a"))
        handler.connection.settimeout(DEADLINE_S)
        if handler.rfile.read(1) == b"":
            closed.set()
        handler.close_connection = True

    with pytest.raises(ClientLeft):
        read(answer, Ask((1,), max_tokens=9, seed=1, leave_after_tokens=1))
    assert closed.wait(DEADLINE_S)


def test_chats_and_ids_have_routes_of_their_own() -> None:
    api = HttpApi("http://127.0.0.1:1", "pdd-sim", TOKENIZER, Clock())
    assert api.route(ASK) == COMPLETIONS_ROUTE
    assert api.route(Ask((Message("user", "hello"),), 1, 1)) == CHAT_ROUTE


def read(answer: object, ask: Ask) -> Reading:
    reading = Reading(ask, 0.0)
    with answering(answer) as url:  # type: ignore[arg-type]
        HttpApi(url, "pdd-sim", TOKENIZER, Clock(), DEADLINE_S).read(ask, reading)
    return reading
