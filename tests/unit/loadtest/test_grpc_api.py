from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc
import pytest

from loadtest.answer import AnswerFailed, Ask, ClientLeft, Reading
from loadtest.grpc_api import GrpcApi
from pdd.client import Client, Retry
from pdd.v1 import inference_pb2, inference_pb2_grpc

PLAN = "pipeline=relay; code=low_hit"
TOKENS = ((0, "prefill-0"), (1, "relay-0"), (2, "relay-0"), (3, "main-0"))


class Gateway(inference_pb2_grpc.InferenceServicer):
    """Answers with TOKENS, or with a status."""

    def __init__(self, status: grpc.StatusCode | None) -> None:
        self.asked: list[inference_pb2.GenerateRequest] = []
        self._status = status

    def Generate(
        self, request: inference_pb2.GenerateRequest, context: grpc.ServicerContext
    ) -> Iterator[inference_pb2.GenerateReply]:
        self.asked.append(request)
        context.send_initial_metadata((("x-pdd-plan", PLAN),))
        if self._status is not None:
            context.set_trailing_metadata((("x-pdd-code", "overloaded"),))
            context.abort(self._status, "full")
        for index, source in TOKENS:
            delta = inference_pb2.Delta(text=" a", first_index=index, tokens=[7 + index], source=source)
            yield inference_pb2.GenerateReply(delta=delta)
        timeline = inference_pb2.Timeline(pipeline="relay", handoff="one_shot")
        usage = inference_pb2.Usage(prompt_tokens=3, completion_tokens=len(TOKENS))
        yield inference_pb2.GenerateReply(done=inference_pb2.Done(finish_reason="length", usage=usage, timeline=timeline))

    def GenerateOnce(
        self, request: inference_pb2.GenerateRequest, context: grpc.ServicerContext
    ) -> inference_pb2.GenerateResponse:
        raise NotImplementedError

    def ListModels(
        self, request: inference_pb2.ListModelsRequest, context: grpc.ServicerContext
    ) -> inference_pb2.ListModelsResponse:
        raise NotImplementedError


@contextmanager
def asked(gateway: Gateway) -> Iterator[GrpcApi]:
    """Its clock moves by a second with each token that is read."""
    server = grpc.server(ThreadPoolExecutor(max_workers=2))
    inference_pb2_grpc.add_InferenceServicer_to_server(gateway, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    clock = iter(range(1, 100))
    try:
        with Client(f"127.0.0.1:{port}", timeout_s=10.0, retry=Retry(attempts=1)) as client:
            yield GrpcApi(client, lambda: float(next(clock)))
    finally:
        server.stop(None).wait()


def test_it_tells_who_made_each_token_and_so_the_gap_at_the_handoff() -> None:
    gateway = Gateway(None)
    ask = Ask((1, 2, 3), max_tokens=4, seed=9, expected_tokens=4)
    reading = Reading(ask, 0.0)
    with asked(gateway) as api:
        api.read(ask, reading)
    assert reading.ttft_s == 1.0
    assert reading.gaps_s == [1.0, 1.0, 1.0]
    assert reading.handoff_gap_s == 1.0
    assert reading.ids == (7, 8, 9, 10)
    assert reading.pipeline == "relay"
    (request,) = gateway.asked
    assert list(request.tokens.ids) == [1, 2, 3]
    assert (request.options.max_tokens, request.options.expected_tokens, request.options.seed) == (4, 4, 9)
    assert request.options.ignore_eos


def test_a_status_is_an_error_with_its_code_and_is_not_asked_again() -> None:
    gateway = Gateway(grpc.StatusCode.RESOURCE_EXHAUSTED)
    ask = Ask((1,), max_tokens=4, seed=1)
    with asked(gateway) as api, pytest.raises(AnswerFailed, match="gRPC RESOURCE_EXHAUSTED overloaded"):
        api.read(ask, Reading(ask, 0.0))
    assert len(gateway.asked) == 1


def test_a_client_that_leaves_has_the_plan_of_what_it_left() -> None:
    ask = Ask((1,), max_tokens=4, seed=1, leave_after_tokens=2)
    reading = Reading(ask, 0.0)
    with asked(Gateway(None)) as api, pytest.raises(ClientLeft):
        api.read(ask, reading)
    assert (reading.tokens, reading.plan) == (2, PLAN)
