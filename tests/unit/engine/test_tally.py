from pdd.engine.base import Aborted, StepBatch, TokenOut
from pdd.engine.tally import Distribution, StepTally


def test_a_value_at_a_bound_counts_to_it_and_one_above_all_counts_last() -> None:
    found = Distribution((1, 2, 4))
    for value in (0, 1, 2, 3, 5):
        found.add(value)
    assert (found.counts, found.total) == ([2, 1, 1, 1], 11)


def test_steps_add_up() -> None:
    steps = StepTally()
    steps.note(StepBatch(1, 0.25, (TokenOut(1, 0, 7), TokenOut(2, 3, 8)), sequences=3, computed_tokens=130))
    steps.note(StepBatch(2, 0.5, (TokenOut(1, 1, 9),), sequences=1, computed_tokens=1))
    assert (steps.computed_tokens, steps.sampled_tokens) == (131, 3)
    assert (sum(steps.duration_s.counts), steps.duration_s.total) == (2, 0.75)
    assert (sum(steps.sequences.counts), steps.sequences.total) == (2, 4)


def test_a_step_that_only_brings_events_is_none_of_the_devices() -> None:
    steps = StepTally()
    steps.note(StepBatch(1, 0.0, events=(Aborted(1),)))
    assert sum(steps.duration_s.counts) == sum(steps.sequences.counts) == 0
