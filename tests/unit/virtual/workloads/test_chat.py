from __future__ import annotations

from itertools import islice, pairwise
from random import Random

from tests.unit.virtual.workloads.asking import turns_of
from virtual.workloads.chat import Chat


def test_a_conversation_repeats_itself_and_goes_on() -> None:
    for session in islice(Chat().sessions(Random(1)), 20):
        walked = list(turns_of(session, 20))
        for (before, answer), (after, _) in pairwise(walked):
            known = before.prompt + answer
            assert after.prompt[: len(known)] == known


def test_conversations_start_in_order_at_the_rate_and_share_one_system_prompt() -> None:
    workload = Chat(rate_s=2.0)
    sessions = list(islice(workload.sessions(Random(1)), 400))
    starts = [session.start_s for session in sessions]
    assert starts == sorted(starts)
    assert 150 < starts[-1] < 250
    prompts = {turn.prompt[: workload.system_tokens] for session in sessions if (turn := session.next_turn(())) is not None}
    assert len(prompts) == 1


def test_every_turn_fits_the_context() -> None:
    workload = Chat(scale=0.25)
    for session in islice(workload.sessions(Random(2)), 200):
        assert all(len(turn.prompt) + turn.max_tokens <= workload.context_tokens for turn, _ in turns_of(session, 20))
