"""Who is registered, whose heartbeats come, and who answers where they are said to be. Pure; called by `checks`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pdd.catalog.base import Registration, Role
from pdd.doctor.facts import Claims, Facts, InstanceFacts, Silence, Unreached
from pdd.doctor.findings import Check, Finding, fault, warning
from pdd.identity import Instance


def registry_findings(facts: Facts, claims: Claims) -> Iterator[Finding]:
    yield from _missing_roles(facts, claims)
    history: dict[str, list[Instance]] = {}
    for look in facts.looks:
        for one in look:
            seen = history.setdefault(one.instance.id, [])
            if not seen or seen[-1] != one.instance:
                seen.append(one.instance)
    present = {one.instance.id for one in facts.present}
    for id, incarnations in history.items():
        if id not in present:
            yield fault(
                Check.HEARTBEAT_LOST,
                id,
                "it was registered, and its heartbeats have stopped",
                "its process has ended or hangs, or its way to Redis is cut (for a main: through the link): look into its log",
            )
        elif len(incarnations) > len(set(incarnations)):
            yield fault(
                Check.DUPLICATE_ID,
                id,
                f"two processes register under this id in turn: {' and '.join(str(one) for one in dict.fromkeys(incarnations))}",
                "give each a PDD_INSTANCE_ID of its own",
            )
        elif len(incarnations) > 1:
            do = "once: nothing. Again and again: its log says why it ends; or a second process has this PDD_INSTANCE_ID"
            yield warning(Check.RESTARTED, id, "another incarnation of it has registered while the doctor looked", do)


def _missing_roles(facts: Facts, claims: Claims) -> Iterator[Finding]:
    seen = {one.role for look in facts.looks for one in look}
    for role in Role:
        if role in seen:
            continue  # or its heartbeats have stopped meanwhile, which is a finding of its own
        do = (
            "start one. Where its process runs, its log says why it can't register: `registry is away` (PDD_REDIS_URL"
            f"{', or the link' if role is Role.MAIN else ''}), or `can't join beside` (see layout_mismatch)"
        )
        if role in claims.needed_roles:
            yield fault(Check.ROLE_MISSING, role.value, f"no {role.value} is registered: no request can be served", do)
        else:
            what = f"no {role.value} is registered: answers stall after their first token where main lacks much of the prompt"
            yield warning(Check.ROLE_MISSING, role.value, what, do)


def address_findings(one: InstanceFacts, others: Sequence[InstanceFacts]) -> Iterator[Finding]:
    """Nobody, somebody else or nobody of this version at the address that an instance has registered."""
    registration, found = one.registration, one.found
    if isinstance(found, Unreached):
        yield _silent(registration, found)
        return
    if found.instance.id != registration.instance.id:
        yield fault(
            Check.WRONG_ADDRESS,
            registration.instance.id,
            f"the address it has registered, {registration.address}, leads to {found.role} {found.instance.id}",
            f"{_address_setting(registration)}: it must lead to {registration.instance.id} from where gateway and prefill are",
        )
    elif found.instance != registration.instance:
        yield fault(
            Check.WRONG_ADDRESS,
            registration.instance.id,
            f"the address it has registered, {registration.address}, leads to another process of the same id "
            f"({found.instance}, registered is {registration.instance})",
            "a process of an earlier start still holds the port, or two have one PDD_INSTANCE_ID: stop one of them",
        )
    elif found.role != registration.role.value:
        yield fault(
            Check.WRONG_ADDRESS,
            registration.instance.id,
            f"it is registered as {registration.role.value} and says that it is {found.role}",
            "restart it; one Redis for each mesh and version",
        )


def _silent(registration: Registration, found: Unreached) -> Finding:
    id, address = registration.instance.id, registration.address
    link = " Is the link in an outage (GET /link on wan's control API)?" if registration.role is Role.MAIN else ""
    match found.silence:
        case Silence.NO_DIAGNOSTICS:
            return fault(
                Check.OTHER_VERSION,
                id,
                f"what answers at {address} knows no diagnostics: {found.why}",
                f"run one version in the whole mesh; or {_address_setting(registration)} leads to something else",
            )
        case Silence.NOBODY if registration.role is not Role.MAIN:
            return fault(
                Check.WRONG_ADDRESS,
                id,
                f"its heartbeats come, and nobody is at the address it has registered, {address}: {found.why}",
                f"{_address_setting(registration)}: it must lead to {id} from where gateway and prefill are",
            )
        case Silence.NOBODY:
            return fault(
                Check.UNREACHABLE,
                id,
                f"its heartbeats come, and nobody is at the address it has registered, {address}: {found.why}",
                f"{_address_setting(registration)}.{link}",
            )
        case Silence.NO_ANSWER:
            return fault(
                Check.UNREACHABLE,
                id,
                f"its heartbeats come, and it does not answer at {address}: {found.why}",
                f"look at what lies between: firewall, network, load of its machine.{link}",
            )


def _address_setting(registration: Registration) -> str:
    if registration.role is Role.MAIN:
        return "correct its PDD_ADVERTISE, or where it has PDD_WAN_CONTROL: the port leased there is gone, restart wan"
    return "correct its PDD_ADVERTISE"
