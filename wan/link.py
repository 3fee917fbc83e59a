"""What a line between two sites does to bytes: a model without I/O or clock.

Called by `line`, which moves real bytes by it. Owns the queue and what is on its way; decides only when a chunk leaves the queue
and when it arrives. One `Direction` is one way of a full-duplex line, shared by every connection:

    push ──► FIFO, bounded, one for all ──► serialised at `rate` ──► on its way for rtt/2 + jitter ──► advance

Loss is seen as TCP shows it to its user: the connection's bytes stall for one round trip, those of others do not.
"""

from __future__ import annotations

import enum
import heapq
import itertools
import math
from collections import deque
from dataclasses import dataclass
from random import Random
from typing import Generic, TypeVar

PACKET_BYTES = 1460  # TCP payload of an Ethernet frame
QUEUE_S = 0.05  # how much of the line's time its queue holds
MIN_QUEUE_BYTES = 32 << 10
MAX_QUEUE_BYTES = 8 << 20
CHUNK_S = 0.005  # a chunk takes the line no longer than this, so that a token is not stuck behind a neighbour's bulk
MIN_CHUNK_BYTES = 2 << 10
MAX_CHUNK_BYTES = 64 << 10
MIN_WINDOW_BYTES = 128 << 10
MAX_WINDOW_BYTES = 16 << 20


class Outage(enum.Enum):
    NONE = "none"
    REFUSE = "refuse"  # new connections are refused; running ones go on
    RESET = "reset"  # connections are reset, new ones at once
    BLACK_HOLE = "black_hole"  # nothing moves and nothing is lost: all of it goes on when the outage ends


@dataclass(frozen=True, slots=True)
class LinkSettings:
    """A line's character, the same in both directions. Raises ValueError on a value that no line has."""

    rate_mbit: float | None = None  # 10⁶ bit/s in each direction; None for no limit
    rtt_ms: float = 0.0
    jitter_ms: float = 0.0  # a chunk is late by up to this, evenly spread; chunks never overtake each other
    loss: float = 0.0  # share of packets lost, 0..1
    outage: Outage = Outage.NONE

    def __post_init__(self) -> None:
        if self.rate_mbit is not None and not 0 < self.rate_mbit < math.inf:
            raise ValueError(f"rate_mbit {self.rate_mbit}: must be above 0, or null for no limit")
        for name, value in (("rtt_ms", self.rtt_ms), ("jitter_ms", self.jitter_ms)):
            if not 0 <= value < math.inf:
                raise ValueError(f"{name} {value}: must be 0 or more")
        if not 0 <= self.loss < 1:
            raise ValueError(f"loss {self.loss}: must lie in [0, 1)")

    @property
    def bytes_per_s(self) -> float:
        return math.inf if self.rate_mbit is None else self.rate_mbit * 1e6 / 8

    @property
    def one_way_s(self) -> float:
        return self.rtt_ms / 2000

    @property
    def chunk_bytes(self) -> int:
        """How much of a connection goes into the queue at once."""
        return round(min(max(self.bytes_per_s * CHUNK_S, MIN_CHUNK_BYTES), MAX_CHUNK_BYTES))

    @property
    def queue_bytes(self) -> int:
        """What the queue holds before connections have to wait; it may be passed by one chunk."""
        return round(min(max(self.bytes_per_s * QUEUE_S, MIN_QUEUE_BYTES), MAX_QUEUE_BYTES))

    @property
    def window_bytes(self) -> int:
        """What one connection may have queued, on its way and not yet taken by its destination: its TCP window."""
        # Twice what fills queue and line, so that one connection alone can use the line up.
        span_s = self.one_way_s + (0.0 if self.rate_mbit is None else QUEUE_S)
        wanted = 2 * span_s * self.bytes_per_s if span_s else 0.0
        return round(min(max(wanted, MIN_WINDOW_BYTES), MAX_WINDOW_BYTES))


FlowT = TypeVar("FlowT")  # hashable
ItemT = TypeVar("ItemT")


@dataclass(frozen=True, slots=True)
class Chunk(Generic[FlowT, ItemT]):
    """`size` bytes of one connection. A mark, such as the end of its data, has size 0 and keeps its place among them."""

    flow: FlowT
    item: ItemT
    size: int


class Direction(Generic[FlowT, ItemT]):
    """One way of the line. Times are seconds on any clock that does not go back; `random` decides jitter and loss."""

    def __init__(self, settings: LinkSettings, random: Random) -> None:
        self._settings = settings
        self._random = random
        self._now_s = -math.inf
        self._queue: deque[Chunk[FlowT, ItemT]] = deque()
        self._queued_bytes = 0
        self._head_leaves_s = math.inf  # when the last byte of the queue's first chunk is on the line
        self._head_left_bytes = 0.0  # what of it was not on the line yet when a black hole began
        self._on_way: list[tuple[float, int, Chunk[FlowT, ItemT]]] = []  # heap by arrival, then order of leaving
        self._order = itertools.count()
        self._last_arrival_s = -math.inf
        self._stalled_until_s: dict[FlowT, float] = {}

    @property
    def settings(self) -> LinkSettings:
        return self._settings

    def has_room(self, now_s: float) -> bool:
        """Whether a chunk may be pushed."""
        self._serve(now_s)
        return self._queued_bytes < self._settings.queue_bytes

    def push(self, chunk: Chunk[FlowT, ItemT], now_s: float) -> None:
        """Queue a chunk behind everyone's. The caller has asked `has_room`."""
        self._serve(now_s)
        self._queue.append(chunk)
        self._queued_bytes += chunk.size
        if len(self._queue) == 1:
            self._start_head(self._now_s, chunk.size)

    def advance(self, now_s: float) -> list[Chunk[FlowT, ItemT]]:
        """Everything that has arrived by `now_s` and was not given before, in the order of arrival."""
        self._serve(now_s)
        if self._frozen:
            return []
        arrived: list[Chunk[FlowT, ItemT]] = []
        while self._on_way and self._on_way[0][0] <= self._now_s:
            arrived.append(heapq.heappop(self._on_way)[2])
        if self._stalled_until_s:
            self._stalled_until_s = {flow: end_s for flow, end_s in self._stalled_until_s.items() if end_s > self._now_s}
        return arrived

    def next_s(self) -> float | None:
        """When `advance` will next have something to do; None while nothing moves."""
        if self._frozen:
            return None
        next_s = min(self._head_leaves_s if self._queue else math.inf, self._on_way[0][0] if self._on_way else math.inf)
        return None if next_s == math.inf else next_s

    def configure(self, settings: LinkSettings, now_s: float) -> None:
        """Change the line from `now_s` on: what is queued leaves at the new rate, what is on its way is not hurried."""
        self._serve(now_s)
        left = self._head_left()
        self._settings = settings
        if self._queue:
            self._start_head(self._now_s, left)

    @property
    def _frozen(self) -> bool:
        return self._settings.outage is Outage.BLACK_HOLE

    def _serve(self, now_s: float) -> None:
        self._now_s = max(self._now_s, now_s)
        while self._queue and self._head_leaves_s <= self._now_s:
            left_s = self._head_leaves_s
            chunk = self._queue.popleft()
            self._queued_bytes -= chunk.size
            self._send(chunk, left_s)
            if self._queue:
                self._start_head(left_s, self._queue[0].size)

    def _start_head(self, from_s: float, left_bytes: float) -> None:
        self._head_left_bytes = left_bytes
        self._head_leaves_s = math.inf if self._frozen else from_s + left_bytes / self._settings.bytes_per_s

    def _head_left(self) -> float:
        if self._frozen or not self._queue:
            return self._head_left_bytes
        # An endless rate leaves nothing in the queue, so the product is finite.
        return (self._head_leaves_s - self._now_s) * self._settings.bytes_per_s

    def _send(self, chunk: Chunk[FlowT, ItemT], left_s: float) -> None:
        settings = self._settings
        late_s = self._random.uniform(0, settings.jitter_ms) / 1000 if settings.jitter_ms else 0.0
        self._last_arrival_s = max(self._last_arrival_s, left_s + settings.one_way_s + late_s)
        stall_s = settings.rtt_ms / 1000 if self._loses(chunk) else 0.0
        arrival_s = max(self._last_arrival_s + stall_s, self._stalled_until_s.get(chunk.flow, -math.inf))
        if stall_s:
            self._stalled_until_s[chunk.flow] = arrival_s
        heapq.heappush(self._on_way, (arrival_s, next(self._order), chunk))

    def _loses(self, chunk: Chunk[FlowT, ItemT]) -> bool:
        if not self._settings.loss:
            return False
        packets = max(1, math.ceil(chunk.size / PACKET_BYTES))
        return self._random.random() < 1 - (1 - self._settings.loss) ** packets
