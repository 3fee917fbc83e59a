"""Answers as a client saw them, made by hand."""

from __future__ import annotations

from loadtest.answer import Ask, Reading


def reading(*deliveries: tuple[float, str], plan: str = "pipeline=relay; code=low_hit", handed_over: bool = False) -> Reading:
    """Asked at 10 s; a token each at the given times (s after that), of the given instances."""
    found = Reading(Ask((1, 2, 3), max_tokens=len(deliveries), seed=1), 10.0)
    found.plan = plan
    for after_s, source in deliveries:
        found.deliver(" a", 1, 10.0 + after_s, source)
    found.handed_over = handed_over
    return found
