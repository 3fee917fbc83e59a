import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdd.sampling import SamplingParams, TokenLogprobs
from pdd.sampling_proto import logprobs_from_proto, logprobs_to_proto, sampling_from_proto, sampling_to_proto
from pdd.v1 import sampling_pb2

VALID = SamplingParams(max_tokens=1, seed=0, logit_bias=((5, 1.0),))


def short_decimals(low: float, high: float) -> st.SearchStrategy[float]:
    """Numbers as people write them: few significant digits, which 32 bits carry, and none too near 0 for them."""
    return st.floats(low, high).map(lambda x: float(f"{x:.4g}")).filter(lambda x: x == 0 or abs(x) > 1e-30)


@st.composite
def valid_params(draw: st.DrawFn) -> SamplingParams:
    u32 = st.integers(0, 2**32 - 1)
    return SamplingParams(
        max_tokens=draw(st.integers(1, 2**32 - 1)),
        seed=draw(st.integers(0, 2**64 - 1)),
        temperature=draw(short_decimals(0, 2)),
        top_k=draw(u32),
        top_p=draw(short_decimals(0.001, 1)),
        min_p=draw(short_decimals(0, 1)),
        presence_penalty=draw(short_decimals(-2, 2)),
        frequency_penalty=draw(short_decimals(-2, 2)),
        repetition_penalty=draw(short_decimals(0.001, 10)),
        logit_bias=tuple(draw(st.dictionaries(u32, short_decimals(-100, 100), max_size=5)).items()),
        min_tokens=draw(u32),
        ignore_eos=draw(st.booleans()),
        eos_ids=tuple(draw(st.lists(u32, max_size=16))),
        top_logprobs=draw(st.none() | st.integers(0, 20)),
    )


@given(valid_params())
def test_parameters_survive_the_wire(params: SamplingParams) -> None:
    assert sampling_from_proto(sampling_to_proto(params)) == params


def test_zero_top_logprobs_differs_from_none() -> None:
    assert sampling_from_proto(sampling_to_proto(SamplingParams(max_tokens=1, seed=0, top_logprobs=0))).top_logprobs == 0


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", 2.1),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("min_p", -0.1),
        ("min_p", 1.1),
        ("presence_penalty", -2.1),
        ("presence_penalty", 2.1),
        ("frequency_penalty", -2.1),
        ("frequency_penalty", 2.1),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", 10.1),
        ("max_tokens", 0),
        ("top_logprobs", 21),
    ],
)
def test_a_value_out_of_bounds_is_refused_by_name(field: str, value: float) -> None:
    message = sampling_to_proto(VALID)
    setattr(message, field, value)
    with pytest.raises(ValueError, match=field):
        sampling_from_proto(message)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    "field", ["temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias"]
)
def test_what_is_not_a_finite_number_is_refused_by_name(field: str, value: float) -> None:
    message = sampling_to_proto(VALID)
    if field == "logit_bias":
        message.logit_bias[0].bias = value
    else:
        setattr(message, field, value)
    with pytest.raises(ValueError, match=field):
        sampling_from_proto(message)


@pytest.mark.parametrize("bias", [-100.1, 100.1])
def test_a_bias_out_of_bounds_is_refused(bias: float) -> None:
    message = sampling_to_proto(VALID)
    message.logit_bias[0].bias = bias
    with pytest.raises(ValueError, match=r"logit_bias\[5\]"):
        sampling_from_proto(message)


@pytest.mark.parametrize(
    ("field", "entries"),
    [
        ("logit_bias", [sampling_pb2.LogitBias(token=i, bias=1) for i in range(1025)]),
        ("logit_bias", [sampling_pb2.LogitBias(token=7, bias=1), sampling_pb2.LogitBias(token=7, bias=2)]),
        ("eos_ids", list(range(17))),
    ],
)
def test_too_many_or_repeated_entries_are_refused(field: str, entries: list[object]) -> None:
    message = sampling_to_proto(VALID)
    message.ClearField(field)  # type: ignore[arg-type]
    getattr(message, field).extend(entries)
    with pytest.raises(ValueError, match=field):
        sampling_from_proto(message)


def test_an_empty_message_is_refused() -> None:
    with pytest.raises(ValueError, match="max_tokens"):
        sampling_from_proto(sampling_pb2.SamplingParams())


@given(
    st.floats(-(2.0**100), 0, width=32),
    st.lists(st.tuples(st.integers(0, 2**32 - 1), st.floats(-(2.0**100), 0, width=32)), max_size=20),
)
def test_logprobs_survive_the_wire(logprob: float, top: list[tuple[int, float]]) -> None:
    logprobs = TokenLogprobs(logprob, tuple(top))
    assert logprobs_from_proto(logprobs_to_proto(logprobs)) == logprobs


def test_logprobs_of_unequal_arrays_are_refused() -> None:
    with pytest.raises(ValueError, match="top_logprobs"):
        logprobs_from_proto(sampling_pb2.TokenLogprobs(logprob=-1, top_tokens=[1, 2], top_logprobs=[-1]))
