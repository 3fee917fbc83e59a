import itertools
import math
from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from pdd.sampling import History, SamplingParams, gumbel_noise, sample, token_logprobs

EMPTY = History((), ())
PINNED_NOISE = [0.22575231183368338, -0.1690875750348684, 0.5282232875506826, -1.2084105223791606]  # seed 42, index 7


@dataclass(frozen=True)
class Fixed:
    scores: NDArray[np.float32]

    def argmax(self) -> int:
        return int(self.scores.argmax())

    def array(self) -> NDArray[np.float32]:
        return self.scores


class ArgmaxOnly:
    def argmax(self) -> int:
        return 7

    def array(self) -> NDArray[np.float32]:
        raise AssertionError("plain greedy decoding has no need of the array")


def scores(*values: float) -> Fixed:
    return Fixed(np.array(values, np.float32))


def params(**changes: object) -> SamplingParams:
    return replace(SamplingParams(max_tokens=100, seed=1, temperature=0.0), **changes)  # type: ignore[arg-type]


def greedy(logits: Fixed, index: int = 0, history: History = EMPTY, **changes: object) -> int:
    return sample(logits, params(**changes), index, history).token


def test_plain_greedy_asks_for_the_argmax_only() -> None:
    assert sample(ArgmaxOnly(), params(), 0, EMPTY).token == 7


def test_greedy_takes_the_lowest_id_of_equals() -> None:
    assert greedy(scores(0, 3, 3, 1)) == 1
    assert greedy(scores(0, 3, 3, 1), logit_bias=((0, 3.0),)) == 0


def test_greedy_ignores_filters_and_seed() -> None:
    assert greedy(scores(0, 3, 1), top_k=2, top_p=0.1, min_p=1.0, seed=99) == 1


@pytest.mark.parametrize(
    ("output", "presence", "frequency", "token"),
    [
        ([], 2.0, 2.0, 0),
        ([0], 0.9, 0.0, 0),
        ([0], 1.1, 0.0, 1),
        ([0, 0, 0], 0.9, 0.0, 0),  # presence counts once
        ([0, 0], 0.0, 0.4, 0),
        ([0, 0, 0], 0.0, 0.4, 1),  # frequency counts each
        ([0, 0], 0.5, 0.3, 1),  # both add up
        ([1], -1.1, 0.0, 1),  # negative ones favour
    ],
)
def test_presence_and_frequency_penalties_count_output_tokens(
    output: list[int], presence: float, frequency: float, token: int
) -> None:
    history = History([0, 0, 0, 0], output)
    assert greedy(scores(1, 0, -9), 0, history, presence_penalty=presence, frequency_penalty=frequency) == token


@pytest.mark.parametrize(
    ("logits", "seen", "token"),
    [
        (scores(1.5, 1.0, -9), History([0], []), 1),  # 1.5 / 2
        (scores(1.5, 1.0, -9), History([], [0]), 1),
        (scores(1.5, 1.0, -9), History([0, 1], [0]), 0),
        (scores(-1.0, -1.5, -9), History([0], []), 1),  # -1 * 2
    ],
)
def test_repetition_penalty_covers_prompt_and_output(logits: Fixed, seen: History, token: int) -> None:
    assert greedy(logits, 0, seen, repetition_penalty=2.0) == token


def test_bias_is_added_to_the_logit() -> None:
    assert greedy(scores(1, 0, 0), logit_bias=((2, 1.5), (0, -100.0))) == 2


def test_eos_is_withheld_until_min_tokens() -> None:
    logits = scores(9, 1, 8)
    chosen = [greedy(logits, index, min_tokens=3, eos_ids=(0, 2)) for index in range(5)]
    assert chosen == [1, 1, 1, 0, 0]


def test_ignored_eos_is_never_withheld() -> None:
    assert greedy(scores(9, 1, 8), min_tokens=3, eos_ids=(0, 2), ignore_eos=True) == 0


def test_ids_outside_the_vocabulary_have_no_effect() -> None:
    assert greedy(scores(1, 2), min_tokens=1, eos_ids=(1, 500), logit_bias=((400, 100.0),)) == 0


def test_logprobs_are_of_the_models_own_distribution() -> None:
    logits, history = scores(2, 1, 0, 1), History([0], [0, 0])
    asked = params(top_logprobs=3, temperature=0.3, top_k=1, repetition_penalty=2.0, presence_penalty=2.0, seed=5)
    chosen = sample(logits, asked, 2, history)
    total = sum(math.exp(value) for value in (2, 1, 0, 1))
    expected = [math.log(math.exp(value) / total) for value in (2, 1, 1)]
    assert chosen.logprobs is not None
    assert [token for token, _ in chosen.logprobs.top] == [0, 1, 3]  # the lowest id first among equals
    assert [logprob for _, logprob in chosen.logprobs.top] == pytest.approx(expected)
    assert chosen.token == 1
    assert chosen.logprobs.logprob == pytest.approx(expected[1])


def test_no_top_logprobs_still_reports_the_chosen_one() -> None:
    chosen = sample(scores(0, 0), params(top_logprobs=0), 0, EMPTY)
    assert chosen.logprobs is not None
    assert chosen.logprobs.logprob == pytest.approx(math.log(0.5))
    assert chosen.logprobs.top == ()


def test_top_logprobs_are_capped_by_the_vocabulary() -> None:
    assert len(token_logprobs(np.zeros(3), 0, 20).top) == 3


def test_tiny_temperature_is_greedy() -> None:
    assert greedy(scores(1, 30, 29.9), temperature=1e-45) == 1


def test_noise_of_an_id_depends_on_seed_index_and_id_alone() -> None:
    some = np.array([0, 3, 4, 700])
    assert np.array_equal(gumbel_noise(3, 4, np.arange(1000))[some], gumbel_noise(3, 4, some))
    streams = [gumbel_noise(seed, index, np.arange(8)).tobytes() for seed in (0, 1, 2**64 - 1) for index in (0, 1, 2**32)]
    assert len(set(streams)) == len(streams)


def test_noise_is_the_same_in_every_version() -> None:
    # If this fails, a mesh of old and new instances would not agree on seeded tokens.
    assert gumbel_noise(42, 7, np.arange(4)) == pytest.approx(PINNED_NOISE, abs=1e-12)


def chi_square(counts: Counter[int], shares: NDArray[np.float64]) -> float:
    draws = counts.total()
    return float(sum((counts[i] - draws * share) ** 2 / (draws * share) for i, share in enumerate(shares)))


@pytest.mark.parametrize("over", ["index", "seed"])
def test_draws_follow_softmax(over: str) -> None:
    logits = scores(0, 1, 2, -1, 0.5, 1.5)
    draws: Counter[int] = Counter()
    for i in range(6000):
        asked = params(temperature=0.8, seed=i if over == "seed" else 11)
        draws[sample(logits, asked, i if over == "index" else 3, EMPTY).token] += 1
    weights = np.exp(logits.scores.astype(np.float64) / 0.8)
    # 20.5 is the 0.999 quantile at 5 degrees of freedom; the draws are fixed, so it never flickers.
    assert chi_square(draws, weights / weights.sum()) < 20.5


def test_draws_follow_the_renormalised_nucleus() -> None:
    logits = scores(2, 1, 0, -1, -2)
    draws: Counter[int] = Counter(sample(logits, params(temperature=1.0, top_p=0.7), i, EMPTY).token for i in range(4000))
    weights = np.exp(np.array([2.0, 1.0]))
    assert set(draws) == {0, 1}
    assert chi_square(draws, weights / weights.sum()) < 10.8


PENALTIES = st.sampled_from([0.0, 0.7, -1.3])


@st.composite
def requests(draw: st.DrawFn) -> SamplingParams:
    return SamplingParams(
        max_tokens=10,
        seed=draw(st.integers(0, 2**64 - 1)),
        temperature=draw(st.sampled_from([0.0, 0.3, 1.0, 2.0])),
        top_k=draw(st.sampled_from([0, 1, 5, 100, 10_000])),
        top_p=draw(st.sampled_from([1.0, 0.01, 0.5, 0.9, 0.999])),
        min_p=draw(st.sampled_from([0.0, 0.05, 1.0])),
        presence_penalty=draw(PENALTIES),
        frequency_penalty=draw(PENALTIES),
        repetition_penalty=draw(st.sampled_from([1.0, 1.3, 0.5])),
        logit_bias=draw(st.sampled_from([(), ((0, 5.0), (3, -2.0))])),
        min_tokens=draw(st.integers(0, 3)),
        eos_ids=draw(st.sampled_from([(), (1, 2)])),
    )


def plainly_sampled(logits: NDArray[np.float32], asked: SamplingParams, index: int, history: History) -> int:
    """The same function once more, one token at a time and without a thought of speed."""
    adjusted = [float(value) for value in logits]
    for token in {*history.prompt, *history.output}:
        factor = asked.repetition_penalty
        adjusted[token] = adjusted[token] / factor if adjusted[token] > 0 else adjusted[token] * factor
    for token, count in Counter(history.output).items():
        adjusted[token] -= count * asked.frequency_penalty + asked.presence_penalty
    for token, bias in asked.logit_bias:
        adjusted[token] += bias
    if index < asked.min_tokens:
        for token in asked.eos_ids:
            adjusted[token] = -math.inf
    if asked.temperature == 0:
        return adjusted.index(max(adjusted))
    scaled = [(value - max(adjusted)) / asked.temperature for value in adjusted]
    best_first = sorted(range(len(scaled)), key=lambda i: -scaled[i])[: asked.top_k or None]
    mass = list(itertools.accumulate(math.exp(scaled[i]) for i in best_first))
    before = [0.0, *mass[:-1]]  # what likelier ids have already
    kept = [i for i, earlier in zip(best_first, before, strict=True) if asked.top_p == 1 or earlier < asked.top_p * mass[-1]]
    kept = [i for i in kept if math.exp(scaled[i]) >= asked.min_p]
    noise = gumbel_noise(asked.seed, index, np.arange(len(scaled)))
    return max(sorted(kept), key=lambda i: scaled[i] + float(noise[i]))


@settings(max_examples=150, deadline=None)
@given(
    asked=requests(),
    shape=st.tuples(st.integers(4, 700), st.integers(0, 2**32 - 1), st.sampled_from([0.2, 3.0])),
    index=st.integers(0, 4),
    prompt=st.lists(st.integers(0, 3)),
    output=st.lists(st.integers(0, 3)),
)
def test_it_agrees_with_the_plain_definition(
    asked: SamplingParams, shape: tuple[int, int, float], index: int, prompt: list[int], output: list[int]
) -> None:
    size, key, spread = shape
    logits = np.random.Generator(np.random.Philox(key=key)).normal(0, spread, size).astype(np.float32)
    before, history = logits.copy(), History(prompt, output)
    chosen = sample(Fixed(logits), asked, index, history).token
    assert chosen == plainly_sampled(logits, asked, index, history)
    assert chosen == sample(Fixed(logits.copy()), asked, index, History(tuple(prompt), tuple(output))).token
    assert np.array_equal(before, logits)
