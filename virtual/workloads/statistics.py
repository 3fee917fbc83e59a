"""What a workload is like: lengths, and hits with caches that never forget.

Called by `__main__` and by the tests that hold the workloads to their figures. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from virtual.workloads.base import Workload
from virtual.workloads.offline import exchanges
from virtual.workloads.percentile import percentile
from virtual.workloads.reference import Reference

HIGH_HIT = 0.95
# Of a singular request: at least so many tokens missed and fewer in its answer, before any scale.
SINGULAR_MISSED_TOKENS = 20_000
SINGULAR_ANSWER_TOKENS = 500


@dataclass(frozen=True, slots=True)
class Statistics:
    """Hits are prefill's, in tokens of the prompts; `main_hit` counts what a main that keeps its output has."""

    requests: int
    prompt_tokens_mean: float
    prompt_tokens_p50: float
    prompt_tokens_p99: float
    answer_tokens_mean: float
    answer_tokens_p50: float
    answer_tokens_p99: float
    hit: float  # of all prompt tokens
    request_hit: float  # mean over requests
    main_hit: float
    high_share: float  # of the requests: those that hit above HIGH_HIT
    singular_share: float


def characterise(workload: Workload, random: Random, duration_s: float, block_tokens: int, scale: float = 1.0) -> Statistics:
    """Of what is asked before `duration_s`. Raises ValueError where nothing is.

    `scale` is the workload's; what counts as singular shrinks with it.
    """
    reference = Reference(block_tokens)
    prompts: list[int] = []
    answers: list[int] = []
    rates: list[float] = []
    singular = 0
    for exchange in exchanges(workload, random, duration_s):
        hits = reference.asked(exchange.turn.prompt)
        reference.answered(exchange.turn.prompt, exchange.answer)
        prompts.append(hits.prompt)
        answers.append(len(exchange.answer))
        rates.append(hits.rate)
        missed = hits.prompt - hits.prefill
        singular += missed > SINGULAR_MISSED_TOKENS * scale and len(exchange.answer) < SINGULAR_ANSWER_TOKENS * scale
    requests = len(rates)
    if not requests:
        raise ValueError(f"nothing is asked within {duration_s:g} s")
    return Statistics(
        requests=requests,
        prompt_tokens_mean=sum(prompts) / requests,
        prompt_tokens_p50=percentile(prompts, 50),
        prompt_tokens_p99=percentile(prompts, 99),
        answer_tokens_mean=sum(answers) / requests,
        answer_tokens_p50=percentile(answers, 50),
        answer_tokens_p99=percentile(answers, 99),
        hit=reference.tally.prefill_rate,
        request_hit=sum(rates) / requests,
        main_hit=reference.tally.main_rate,
        high_share=sum(rate > HIGH_HIT for rate in rates) / requests,
        singular_share=singular / requests,
    )
