"""What became of one request. Made by `drive`, read by `report`."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.generation import End


@dataclass(frozen=True, slots=True)
class Record:
    """Times in seconds; `asked_s` from the run's start. What did not come to be is 0."""

    session: int
    turn: int
    asked_s: float
    took_s: float  # until its end or its error
    prompt_tokens: int
    max_tokens: int
    tokens: int
    ttft_s: float
    second_s: float  # from the first token to the second
    gap_p50_s: float
    gap_p99_s: float
    gap_max_s: float
    end: End | None
    error: str = ""  # the code of a MeshError

    @property
    def pipeline(self) -> str:
        """ "relay", "direct" or "singular"; "" for one that failed."""
        return "" if self.end is None else self.end.timeline.pipeline

    @property
    def cached_tokens(self) -> int:
        """Of the prompt: what prefill did not compute."""
        return 0 if self.end is None else self.end.usage.cached_tokens

    @property
    def main_cached_tokens(self) -> int:
        return 0 if self.end is None else self.end.timeline.main_cached_tokens

    @property
    def wan_bytes(self) -> int:
        return 0 if self.end is None else self.end.timeline.wan_kv_bytes

    @property
    def eager_tokens(self) -> int:
        return 0 if self.end is None else self.end.timeline.eager_tokens
