"""How well the two sites' caches agree, from the records of a run.

Called by benchmarks and tests. Pure. Prompt tokens alone count, weighted as they are: a prompt of 60,000 tokens says as much as
sixty of 1,000. Requests that failed are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from virtual.workloads.record import Record


@dataclass(frozen=True, slots=True)
class Alignment:
    """Shares of the prompt tokens, 0..1; bytes of KV."""

    prompt_tokens: int
    prefill_rate: float  # that prefill took from its cache
    main_rate: float  # that main had: its own word, or the catalog's where nothing was offered to it
    wan_bytes: int

    @property
    def gap(self) -> float:
        """By how much prefill hits more than main; what must not grow."""
        return self.prefill_rate - self.main_rate


def alignment(records: Iterable[Record], from_s: float = 0.0) -> Alignment:
    """Of the requests asked at `from_s` or later, seconds from the run's start. Raises ValueError where there are none."""
    whole = [record for record in records if record.end is not None and record.asked_s >= from_s]
    prompt_tokens = sum(record.prompt_tokens for record in whole)
    if not prompt_tokens:
        raise ValueError(f"no request that was asked from {from_s:g} s on has an answer")
    return Alignment(
        prompt_tokens,
        sum(record.cached_tokens for record in whole) / prompt_tokens,
        sum(record.main_cached_tokens for record in whole) / prompt_tokens,
        sum(record.wan_bytes for record in whole),
    )


def least_wan_bytes(alignment: Alignment, main_reference_rate: float, kv_bytes: int) -> float:
    """KV that must cross where main hits as the reference does; `kv_bytes` are a token's."""
    return (1.0 - main_reference_rate) * alignment.prompt_tokens * kv_bytes


def by_window(records: Sequence[Record], window_s: float) -> list[tuple[float, Alignment]]:
    """Window by window of the time of asking: its start, and how well the caches agreed in it. Empty windows are left out."""
    numbers = sorted({int(record.asked_s // window_s) for record in records if record.end is not None})
    windows = {number: [one for one in records if int(one.asked_s // window_s) == number] for number in numbers}
    return [(number * window_s, alignment(found)) for number, found in windows.items()]
