from __future__ import annotations

from itertools import islice
from random import Random

from tests.unit.virtual.workloads.asking import turns_of
from virtual.workloads.documents import Documents

WORKLOAD = Documents(scale=0.125)


def test_questions_share_their_document_and_documents_nothing_but_the_system_prompt() -> None:
    document_tokens = int(WORKLOAD.document.least * WORKLOAD.scale)
    system_tokens = int(WORKLOAD.system_tokens * WORKLOAD.scale)
    texts = []
    for session in islice(WORKLOAD.sessions(Random(1)), 30):
        starts = {turn.prompt[:document_tokens] for turn, _ in turns_of(session, 8)}
        assert len(starts) == 1
        texts.append(starts.pop())
    assert len(set(texts)) == 30
    assert len({text[:system_tokens] for text in texts}) == 1


def test_every_turn_fits_the_context() -> None:
    for session in islice(WORKLOAD.sessions(Random(2)), 100):
        assert all(len(turn.prompt) + turn.max_tokens <= WORKLOAD.context_tokens for turn, _ in turns_of(session, 8))
