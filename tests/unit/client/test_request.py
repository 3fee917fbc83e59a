import pytest

from pdd.client import Chat, Request, Text, TokenIds
from pdd.client.request import request_metadata
from pdd.v1.inference_pb2 import GenerateOptions, GenerateRequest


def test_what_is_not_given_is_left_to_the_gateway() -> None:
    assert Request(Text("hi")).to_proto() == GenerateRequest(prompt="hi", options=GenerateOptions())


def test_what_is_given_is_set_even_where_it_is_nought() -> None:
    options = Request(Text("hi"), temperature=0.0, seed=0, top_logprobs=0).to_proto().options
    assert {field.name: value for field, value in options.ListFields()} == {"temperature": 0.0, "seed": 0, "top_logprobs": 0}


def test_every_option_of_the_wire_can_be_given() -> None:
    known = {field.name for field in GenerateOptions.DESCRIPTOR.fields}
    assert known <= set(Request.__dataclass_fields__)


def test_each_input_has_its_own_field() -> None:
    inputs = (Text("hi"), Chat.question("hi"), TokenIds((1, 2)), TokenIds(()))
    assert [Request(given).to_proto().WhichOneof("input") for given in inputs] == ["prompt", "chat", "tokens", "tokens"]


def test_a_number_that_does_not_fit_is_told_at_once() -> None:
    with pytest.raises(ValueError, match="out of range"):
        Request(Text("hi"), max_tokens=-1).to_proto()


@pytest.mark.parametrize("unfit", ["über", "a b", "a\n", "\0", "x" * 129])
def test_a_label_that_can_not_travel_is_told_by_its_name(unfit: str) -> None:
    with pytest.raises(ValueError, match="request_id must have"):
        request_metadata(unfit, "")
    with pytest.raises(ValueError, match="traceparent must have"):
        request_metadata("", unfit)


def test_only_what_is_given_travels_as_metadata() -> None:
    assert request_metadata("", "") == ()
    assert request_metadata("mine", "00-ab-cd-01") == (("x-request-id", "mine"), ("traceparent", "00-ab-cd-01"))
