"""What one attached gateway is owed: collected step by step, taken as one DecodeFrame whenever the stream can take one.

Filled by the session as the engine and the receiver report, emptied by the stream's writer. Owns the bound on what may pile up.
Never awaits: a decoder never waits for a peer to read.

Why frames may coalesce. A frame is applied as opening events, then tokens, then closing events, which is the order inside one
step. When the peer is slow a frame holds several steps, and sorting them by kind must not reorder a handle's own reports:

    Wanted, KvReady, Extended…   come before a handle's first token: once it decodes it takes no other extend (handles.py)
    tokens                       keep their order in the parallel arrays
    Stopped, Finished, Error, …  are a handle's last report: nothing is added for it afterwards (handles.py)

So what a handle reports always has the shape opening* token* closing, over however many steps, and a stable sort by kind leaves
it as it was. Between handles no order is promised.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pdd.sampling import TokenLogprobs
from pdd.sampling_proto import logprobs_to_proto
from pdd.v1 import decode_pb2, sampling_pb2

DEFAULT_BOUND = 16_384


@dataclass(slots=True)
class Outbox:
    bound: int = DEFAULT_BOUND  # tokens and events that may wait for a peer that does not read
    _opening: list[decode_pb2.OpeningEvent] = field(default_factory=list)
    _handles: list[int] = field(default_factory=list)
    _indices: list[int] = field(default_factory=list)
    _tokens: list[int] = field(default_factory=list)
    _logprobs_of: list[int] = field(default_factory=list)
    _logprobs: list[sampling_pb2.TokenLogprobs] = field(default_factory=list)
    _closing: list[decode_pb2.ClosingEvent] = field(default_factory=list)
    _told: tuple[int, ...] = ()  # the load as the peer last heard it

    def open(self, event: decode_pb2.OpeningEvent) -> None:
        self._opening.append(event)

    def token(self, handle: int, index: int, token: int, logprobs: TokenLogprobs | None) -> None:
        if logprobs is not None:
            self._logprobs_of.append(len(self._tokens))
            self._logprobs.append(logprobs_to_proto(logprobs))
        self._handles.append(handle)
        self._indices.append(index)
        self._tokens.append(token)

    def close(self, event: decode_pb2.ClosingEvent) -> None:
        self._closing.append(event)

    @property
    def waiting(self) -> int:
        """Tokens and events that have not been taken."""
        return len(self._tokens) + len(self._opening) + len(self._closing)

    @property
    def overflowing(self) -> bool:
        return self.waiting > self.bound

    def take(self, step: int, load: decode_pb2.DecodeLoad) -> decode_pb2.DecodeFrame | None:
        """Everything since the last call, with the step and the load of now; None where neither says anything new."""
        told = _key(load)
        if not self.waiting and told == self._told:
            return None
        frame = decode_pb2.DecodeFrame(
            step=step,
            opening=self._opening,
            handle=self._handles,
            index=self._indices,
            token=self._tokens,
            logprobs_of=self._logprobs_of,
            logprobs=self._logprobs,
            closing=self._closing,
            load=load,
        )
        self._told = told
        self.clear()
        return frame

    def clear(self) -> None:
        self._opening.clear()
        self._closing.clear()
        self._logprobs.clear()
        for column in (self._handles, self._indices, self._tokens, self._logprobs_of):
            column.clear()


def _key(load: decode_pb2.DecodeLoad) -> tuple[int, ...]:
    """What of a load deserves a frame of its own. A step's time varies with every step and rides along."""
    return (load.running, load.waiting, load.slots, round(load.kv_used * 1000))
