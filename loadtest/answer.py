"""One request and what its client sees of the answer. Pure: times are arguments, in seconds on any one clock.

Made by the users, filled by `http_api` and `grpc_api`, read by `measures`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from virtual.workloads.base import Ids


@dataclass(frozen=True, slots=True)
class Message:
    role: str  # "system", "user" or "assistant"
    content: str


@dataclass(frozen=True, slots=True)
class Ask:
    """The answer has exactly `max_tokens` tokens, unless the client leaves."""

    prompt: Ids | tuple[Message, ...]  # ids as they stand, or a chat
    max_tokens: int
    seed: int
    expected_tokens: int | None = None  # what the client says of the answer's length, where it says anything
    leave_after_tokens: int | None = None  # the client goes away after so many; None: it stays to the end


class AnswerFailed(Exception):
    """No answer, or not all of it. The text is one of few, so that locust can count equal ones."""


class ClientLeft(Exception):
    """The client went away, as it was told to."""


class Reading:
    """An answer as it comes in."""

    def __init__(self, ask: Ask, started_s: float) -> None:
        self.ask = ask
        self.plan = ""  # as x-pdd-plan; empty until it was heard
        self.text = ""
        self.ids: Ids = ()  # of the answer, where the API tells them
        self.gaps_s: list[float] = []  # between two deliveries
        self.handed_over = False  # main took over from a relay; set at the end, where the API tells it
        self._tokens = 0
        self.started_s = started_s
        self._first_s: float | None = None
        self._first_tokens = 0
        self._last_s = started_s
        self._source = ""
        self._change_gap_s: float | None = None

    def deliver(self, text: str, tokens: int, now_s: float, source: str = "", ids: Sequence[int] = ()) -> None:
        """Tokens that came together, of one instance. Raises ClientLeft where the client was to leave by now."""
        self.text += text
        self.ids += tuple(ids)
        self._tokens += tokens
        if self._first_s is None:
            self._first_s, self._first_tokens = now_s, tokens
        else:
            self.gaps_s.append(now_s - self._last_s)
            if source != self._source:
                self._change_gap_s = now_s - self._last_s
        self._last_s, self._source = now_s, source
        leave_after = self.ask.leave_after_tokens
        if leave_after is not None and self._tokens >= leave_after:
            raise ClientLeft

    def count(self, tokens: int) -> None:
        """The number of tokens as the gateway has it: over HTTP a delivery is an event, which may hold several."""
        self._tokens = tokens

    @property
    def tokens(self) -> int:
        return self._tokens

    @property
    def pipeline(self) -> str:
        """As planned; empty where nothing was heard."""
        return dict(pair.partition("=")[::2] for pair in self.plan.split("; ")).get("pipeline", "")

    @property
    def ttft_s(self) -> float | None:
        return None if self._first_s is None else self._first_s - self.started_s

    @property
    def duration_s(self) -> float:
        """To the last delivery."""
        return self._last_s - self.started_s

    @property
    def tokens_per_s(self) -> float | None:
        """Behind the first delivery; None where there was only one."""
        if self._first_s is None or self._last_s <= self._first_s:
            return None
        return (self._tokens - self._first_tokens) / (self._last_s - self._first_s)

    @property
    def handoff_gap_s(self) -> float | None:
        """From the relay's last token to main's first; None without a handoff, and where nothing tells who made a token."""
        return self._change_gap_s if self.handed_over else None
