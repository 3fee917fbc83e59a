"""What a routing decision sees: who is there, what each has of the prompt, and the lines between the sites.

Filled by `gateway.mesh` for each request, read by `router`. Data only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pdd.catalog.base import Registration
from pdd.identity import Instance

Line = tuple[str, str]  # site of the prefill, site of the main


@dataclass(frozen=True, slots=True)
class Candidate:
    """An instance with a stream to it."""

    registration: Registration
    load: float  # (running + waiting) / slots, as the instance last said
    in_flight: int  # requests that this gateway has there
    cached_tokens: int = 0  # leading tokens of this prompt, as the catalog says
    # Of a decoder
    step_s: float = 0.0  # of its batch, as it last said; 0 where it has made none
    kv_used: float = 0.0  # share of its KV memory
    # Of a prefill
    queued_tokens: int = 0  # prompt tokens to be computed, as it last said
    unanswered_tokens: int = 0  # those that this gateway has sent and seen no first token of
    prefill_tokens_s: float = 0.0  # measured; 0 where it has not been

    @property
    def id(self) -> str:
        return self.registration.instance.id

    @property
    def requests(self) -> float:
        """As reported, or those that this gateway has there, whichever is more: no report covers yet what was just sent."""
        return max(self.load * self.registration.slots, self.in_flight)

    @property
    def pressure(self) -> float:
        """Requests as a share of the slots."""
        return self.requests / self.registration.slots

    @property
    def waiting_tokens(self) -> int:
        """Prompt tokens that a prefill computes before a new prompt's."""
        return max(self.queued_tokens, self.unanswered_tokens)


@dataclass(frozen=True, slots=True)
class Link:
    """The line between two sites, all instances together."""

    goodput_bytes_s: float  # > 0
    backlog_bytes: int = 0  # on their way or promised
    transfers: int = 0  # that share the backlog
    round_trip_s: float = 0.0

    def transfer_s(self, missing_bytes: int) -> float:
        """From the offer to the commit, were the KV there at once.

        Transfers share the line evenly: by the time that this one is through, each of the others has moved as much as this one,
        or has ended. Where nothing is missing nothing queues.
        """
        if not missing_bytes:
            return self.round_trip_s
        beside_bytes = min(self.backlog_bytes, self.transfers * missing_bytes)
        return (missing_bytes + beside_bytes) / self.goodput_bytes_s + self.round_trip_s


@dataclass(frozen=True, slots=True)
class Snapshot:
    candidates: Sequence[Candidate]
    prior: Link  # what is believed of a line that is not in `links`
    links: Mapping[Line, Link]

    def link(self, prefill: Registration, main: Registration) -> Link:
        return self.links.get((prefill.site, main.site), self.prior)

    def step_s(self, decoder: Registration | None) -> float:
        """Of its batch, as it last said; 0 where that is not known."""
        told = (one.step_s for one in self.candidates if decoder is not None and one.registration.instance == decoder.instance)
        return next(told, 0.0)


@dataclass(frozen=True, slots=True)
class RouteRequest:
    prompt_tokens: int  # at least 1
    max_tokens: int  # bound of the answer
    expected_output_tokens: int  # see `lengths`
    session_main: Instance | None = None  # that has the conversation so far, see `sessions`
    waited_s: float = 0.0  # for a relay's slot, since the request came

    @property
    def tokens(self) -> int:
        """What the request may come to, prompt and answer together."""
        return self.prompt_tokens + self.max_tokens
