"""Who serves a request: one prefill, one main and, in pipeline `relay`, one relay, each the least loaded that fits.

Called by `gateway.mesh` for every request, with what it knows of the instances at that moment. Pure. Prefix hits and links are
not weighed here: that is the router's, which comes to this place later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.generation import MeshError, MeshErrorCode
from gateway.handoff.machine import Pipeline
from gateway.routing.snapshot import Candidate as Candidate
from pdd.catalog.base import Registration, Role
from pdd.kv.layout import differences


@dataclass(frozen=True, slots=True)
class Placement:
    prefill: Registration
    relay: Registration | None  # None in pipeline `direct`
    main: Registration

    def instances(self) -> dict[Role, Registration]:
        chosen = {Role.PREFILL: self.prefill, Role.RELAY: self.relay, Role.MAIN: self.main}
        return {role: registration for role, registration in chosen.items() if registration is not None}


def decoder_roles(pipeline: Pipeline) -> tuple[Role, ...]:
    """The decoders that a request of this pipeline needs."""
    return (Role.RELAY, Role.MAIN) if pipeline is Pipeline.RELAY else (Role.MAIN,)


def place(candidates: Sequence[Candidate], pipeline: Pipeline, tokens: int) -> Placement:
    """Choose instances for a request of at most `tokens` tokens, prompt and output together.

    The least loaded of each role is taken, ties by id; the decoders must be able to take the chosen prefill's KV. Raises
    MeshError NO_INSTANCE, which names the role that nobody can fill and says why.
    """
    by_role = {role: _fitting(candidates, role, tokens) for role in (Role.PREFILL, *decoder_roles(pipeline))}
    problem = ""
    for prefill in by_role[Role.PREFILL]:
        decoders = {role: _first_compatible(prefill, by_role[role]) for role in decoder_roles(pipeline)}
        lacking = [role for role, decoder in decoders.items() if decoder is None]
        main = decoders[Role.MAIN]
        if main is not None and not lacking:
            return Placement(prefill, decoders.get(Role.RELAY), main)
        problem = problem or _incompatible(prefill, lacking[0], by_role[lacking[0]])
    raise MeshError(MeshErrorCode.NO_INSTANCE, problem)


def _fitting(candidates: Sequence[Candidate], role: Role, tokens: int) -> list[Registration]:
    """Everyone of a role whose context holds the request, least loaded first. Raises MeshError where there is nobody."""
    present = [candidate for candidate in candidates if candidate.registration.role is role]
    if not present:
        raise MeshError(MeshErrorCode.NO_INSTANCE, f"no {role.value} instance is connected; start one or wait for it to register")
    fitting = [candidate for candidate in present if candidate.registration.context_tokens >= tokens]
    if not fitting:
        largest = max(candidate.registration.context_tokens for candidate in present)
        text = f"no {role.value} instance holds {tokens} tokens, the largest {largest}; shorten the prompt or lower max_tokens"
        raise MeshError(MeshErrorCode.NO_INSTANCE, text)
    fitting.sort(key=lambda candidate: (candidate.pressure, candidate.registration.instance.id))
    return [candidate.registration for candidate in fitting]


def _first_compatible(prefill: Registration, decoders: Sequence[Registration]) -> Registration | None:
    return next((decoder for decoder in decoders if not differences(prefill.layout, decoder.layout)), None)


def _incompatible(prefill: Registration, role: Role, decoders: Sequence[Registration]) -> str:
    nearest = decoders[0]
    why = "; ".join(differences(prefill.layout, nearest.layout))
    return f"no {role.value} instance can take KV from {prefill}; {nearest} differs in {why}"
