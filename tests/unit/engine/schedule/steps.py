"""A scheduler and steps of a model that samples as it is told: what the tests of this folder share."""

from __future__ import annotations

from pdd.engine.base import Capabilities, StepBatch
from pdd.engine.schedule import Scheduler, StepLimits
from pdd.engine.step import Step, StepResult
from pdd.sampling import Sampled, SamplingParams

EOS = 99
GREEDY = SamplingParams(max_tokens=50, seed=0, temperature=0.0, eos_ids=(EOS,))
LIMITS = StepLimits(chunk_tokens=32, step_tokens=64)
VOCABULARY_SIZE = 1000


def scheduler(slots: int = 4, limits: StepLimits = LIMITS, context_tokens: int = 256) -> Scheduler:
    return Scheduler(Capabilities(context_tokens, slots, True, VOCABULARY_SIZE), 16, limits)


def results(step: Step, token: int = 7) -> StepResult:
    """What a model gives that samples `token` everywhere."""
    return StepResult(
        sampled={work.seq: Sampled(token, None) for work in step.works if work.draw},
        scored={work.seq: (token,) * len(work.scores) for work in step.works},
        blocks={work.seq: (b"block",) * (work.blocks[1] - work.blocks[0]) for work in step.works if work.blocks},
    )


def run(scheduler: Scheduler, now_s: float = 0.0, token: int = 7, takes_s: float = 0.0) -> tuple[Step, StepBatch]:
    step = scheduler.plan(now_s)
    assert step is not None
    return step, scheduler.complete(results(step, token), now_s + takes_s)


def shape(step: Step) -> list[tuple[int, int]]:
    """(sequence, rows) of a step's works, in order."""
    return [(work.seq, len(work.rows)) for work in step.works]


def decoding(scheduler: Scheduler, seq: int, prompt_tokens: int = 20) -> None:
    """Bring a sequence to where it decodes from output index 2 on."""
    scheduler.open(seq, range(prompt_tokens), GREEDY, None, 0.0)
    scheduler.extend(seq, 0, [1], then_decode=True)
    while not run(scheduler)[1].tokens:
        pass
