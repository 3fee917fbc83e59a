import pytest

from pdd.client import RequestFailed
from pdd.client.answer import Reading
from pdd.v1.inference_pb2 import Delta, Done, GenerateReply


def test_a_result_is_there_at_the_end_and_not_before() -> None:
    reading = Reading()
    reading.hear((("x-request-id", "mine"), ("x-pdd-plan", "pipeline=direct")))
    assert not reading.began
    reading.take(GenerateReply(delta=Delta(text="a", tokens=[1], source="main-0")))
    assert (reading.began, reading.ended) == (True, False)
    with pytest.raises(RuntimeError, match="has not ended"):
        _ = reading.result
    assert reading.take(GenerateReply(done=Done(finish_reason="length"))) is None
    assert reading.ended
    assert (reading.result.text, reading.result.tokens, reading.result.finish_reason) == ("a", (1,), "length")
    assert (reading.result.request_id, reading.result.plan) == ("mine", "pipeline=direct")


def test_a_token_without_text_was_delivered_too() -> None:
    reading = Reading()
    reading.take(GenerateReply(delta=Delta(tokens=[1], source="main-0")))
    assert reading.began


def test_a_stream_that_just_ends_is_a_failure_of_that_request() -> None:
    reading = Reading()
    reading.hear((("x-request-id", "mine"),))
    error = reading.broken_off()
    assert isinstance(error, RequestFailed)
    assert error.request_id == "mine"
