"""What routing turns on. Made by `gateway.mesh` from its settings; read by `router` and `correct`."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.handoff.machine import Pipeline


@dataclass(frozen=True, slots=True)
class RoutePolicy:
    pipeline: Pipeline | None = None  # RELAY or DIRECT for every request; None: each request's own
    stall_budget_s: float = 0.2  # from the first token to the second
    ttft_budget_s: float = 10.0  # within which a request may wait for a relay's slot
    declared_stall_s: float = 10.0  # the longest stall that a direct plan declares where no relay has a slot
    # Singular: the line would be busy for long, and the answer is short.
    singular_least_s: float = 1.0  # that the missing bytes alone take on the line
    singular_most_tokens: int = 500  # expected output
    # Instances
    load_bound: float = 1.5  # requests of one instance by those of the mean one, beyond which a hit does not count
    free_share: float = 0.125  # of the slots, up to which an instance is never overloaded
    session_pressure: float = 1.0  # from which a conversation leaves its main
    computing_weight: float = 3.0  # of what a prefill's computing costs others, by its own time
    crowding_s: float = 0.05  # what a full batch costs those who share it: decides between equal hits
    full_kv: float = 0.95  # share of a relay's KV memory from which it is full
    # Believed until measured
    step_s: float = 0.02
    prefill_tokens_s: float = 4000.0
    # For benchmarks: low-hit requests stay on the relay, and main's cache falls behind.
    relay_alone_when_low_hit: bool = False

    def __post_init__(self) -> None:
        if self.pipeline is Pipeline.SINGULAR:
            raise ValueError("pipeline singular can't be forced: main's cache would fall behind; force relay or direct, or none")
        if self.load_bound < 1:
            raise ValueError(f"load_bound ({self.load_bound}) must be at least 1, or there may be nobody within it")
        for name in ("step_s", "prefill_tokens_s"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} ({getattr(self, name)}) must be positive")
