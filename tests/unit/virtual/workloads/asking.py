"""Walks sessions by hand."""

from __future__ import annotations

from collections.abc import Iterator

from virtual.workloads.base import Ids, Session, Turn
from virtual.workloads.passages import passage


def turns_of(session: Session, count: int) -> Iterator[tuple[Turn, Ids]]:
    """Its first `count` turns, each with a made-up answer."""
    answer: Ids = ()
    for number in range(count):
        turn = session.next_turn(answer)
        if turn is None:
            return
        answer = passage(number, turn.max_tokens)
        yield turn, answer
