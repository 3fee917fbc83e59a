"""Whether all instances and the gateway mean the same by a KV block and a token. Pure; called by `checks`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pdd.catalog.base import Role
from pdd.doctor.facts import Claims, Facts, InstanceFacts, Report
from pdd.doctor.findings import Check, Finding, fault
from pdd.kv.layout import KvLayout, differences

SHOWN = 12  # digits of a digest


def layout_findings(facts: Facts, claims: Claims) -> Iterator[Finding]:
    """A finding for each instance that differs: from the gateway's card, or else from the first prefill, or that was refused."""
    present = {one.instance.id for one in facts.present}
    for id, why in facts.refused.items():
        if id not in present:
            do = "give it the PDD_ENGINE, PDD_MODEL_DIR and PDD_BLOCK_TOKENS of the others, or a Redis of its own, and restart it"
            yield fault(Check.LAYOUT_MISMATCH, id, f"the registry has refused it in the last minutes: {why}", do)
    foreign = [one for one in facts.instances if _model(_layout(one)) != (claims.model_digest, claims.tokenizer_digest)]
    ours = [one for one in facts.instances if one not in foreign]
    for one in foreign:
        model, tokenizer = _model(_layout(one))
        yield fault(
            Check.LAYOUT_MISMATCH,
            one.registration.instance.id,
            "it serves another model or tokenizer than the gateway, which gives it no requests: model "
            f"{model[:SHOWN]}, tokenizer {tokenizer[:SHOWN]}; the gateway's {claims.model_digest[:SHOWN]}, "
            f"{claims.tokenizer_digest[:SHOWN]}",
            f"give {'it' if ours else 'the gateway'} the PDD_ENGINE and PDD_MODEL_DIR of the others, and restart it",
        )
    yield from _unlike(sorted(ours, key=lambda one: one.registration.role is not Role.PREFILL))


def _unlike(instances: Sequence[InstanceFacts]) -> Iterator[Finding]:
    for one in instances[1:]:
        first, id = instances[0].registration.instance.id, one.registration.instance.id
        if found := differences(_layout(instances[0]), _layout(one)):
            yield fault(
                Check.LAYOUT_MISMATCH,
                id,
                f"its KV blocks and those of {first} can't be exchanged ({first}'s against its own): {'; '.join(found)}",
                "give both the same PDD_MODEL_DIR and PDD_BLOCK_TOKENS, and restart the one that was wrong",
            )


def _layout(one: InstanceFacts) -> KvLayout:
    """What the instance says itself counts, where it is the one that was meant."""
    found, registration = one.found, one.registration
    return found.layout if isinstance(found, Report) and found.instance == registration.instance else registration.layout


def _model(layout: KvLayout) -> tuple[str, str]:
    return layout.model_digest, layout.tokenizer_digest
