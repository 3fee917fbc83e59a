"""`auto`: a handoff goes by what is known of relay and main when it begins, and by what changes meanwhile. In virtual time."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from pdd.catalog.base import Role
from pdd.engine.sim.cost import HARDWARE, MODELS
from pdd.engine.sim.model import SimConfig
from tests.eventually import eventually
from tests.mesh.gateway.moments import CPU, LINE, Asked, answers, asked, mesh_spec
from tests.mesh.virtual.alone import alone
from tests.mesh.virtual.asking import Answer, ask
from virtual.clock import run
from virtual.mesh import InstanceSpec, MeshSpec, running_mesh
from wan.link import LinkSettings

# A decode step of 25 ms, whatever few tokens are in it.
_MODEL = MODELS["dense-8b"]
GPU = SimConfig(hardware=replace(HARDWARE["gpu-a"], memory_bytes_s=_MODEL.weight_bytes / 0.025, overhead_s=0.0), model=_MODEL)


def how(found: Answer) -> str:
    assert found.end is not None
    return found.end.timeline.handoff


def test_one_shot_is_taken_once_it_is_known_that_an_extend_costs_nothing() -> None:
    spec = mesh_spec(GPU, LinkSettings(rate_mbit=50.0, rtt_ms=40.0), handoff="auto", itl_target_ms=50.0)
    found = answers(spec, [asked(100, 150, text=text) for text in range(4)])
    assert all(one.made_by("relay") > 60 for one in found)
    # Of the first it can't be told what is the ids' and what the step's, since main has not made a step before.
    assert [how(one) for one in found] == ["catch_up", "catch_up", "one_shot", "one_shot"]
    assert all(max(one.gaps_s[1:]) <= 1.5 * 0.025 for one in found)


def test_catch_up_is_kept_where_extends_cost_what_they_cost() -> None:
    found = answers(mesh_spec(handoff="auto"), [asked(text=text) for text in range(3)])
    assert [how(one) for one in found] == ["catch_up"] * 3


def test_one_shot_is_taken_where_rounds_could_not_converge() -> None:
    # Main's chip takes longer to compute a known token than the relay's to make one, even throttled to the inter-token target.
    weak = replace(CPU, hardware=replace(CPU.hardware, name="weak", flops=CPU.hardware.flops / 20))
    spec = mesh_spec(handoff="auto")
    spec = replace(spec, instances=(*spec.instances[:2], InstanceSpec(Role.MAIN, weak)))
    found = answers(spec, [asked(text=text) for text in range(3)])
    assert how(found[-1]) == "one_shot"


def _with_slots(relay: int, main: int) -> MeshSpec:
    slots = {Role.PREFILL: 8, Role.RELAY: relay, Role.MAIN: main}
    instances = tuple(InstanceSpec(role, replace(CPU, slots=count)) for role, count in slots.items())
    return replace(mesh_spec(line=replace(LINE, rate_mbit=30.0), handoff="auto"), instances=instances)


async def _beside_others(spec: MeshSpec, others: int, head_start_s: float) -> Answer:
    """One answer, and others of short prompts that start so long before it, or after it where that is negative."""

    async def one(request: Asked, after_s: float) -> Answer:
        await asyncio.sleep(after_s)
        return await ask(mesh.gateway, request.prompt, request.sampling)

    async with running_mesh(spec) as mesh, asyncio.TaskGroup() as group:
        for number in range(others):
            group.create_task(one(asked(1, 400, text=number + 1), max(0.0, -head_start_s) + 0.1 * number * (head_start_s > 0)))
        found = await group.create_task(one(asked(max_tokens=200), max(0.0, head_start_s)))
    await eventually(lambda: mesh.holds_nothing)
    assert tuple(found.tokens) == alone(asked().prompt, replace(asked().sampling, max_tokens=200)).tokens
    return found


def test_a_full_relay_hands_over_at_once_to_an_idle_main_and_in_bites_to_a_busy_one() -> None:
    spec = _with_slots(relay=1, main=8)  # the request alone fills the relay, and nobody waits for it
    idle = run(_beside_others, spec, 0, 2.0, limit_s=60.0)
    busy = run(_beside_others, spec, 7, 2.0, limit_s=60.0)
    assert (how(idle), how(busy)) == ("one_shot", "catch_up")


def test_a_queue_at_the_relay_turns_a_running_catch_up_into_one_shot() -> None:
    spec = _with_slots(relay=2, main=8)
    undisturbed = run(_beside_others, spec, 0, 0.0, limit_s=60.0)
    assert undisturbed.end is not None
    first, *_, last = [span for span in undisturbed.end.timeline.spans if span.name == "extend"]
    cut_short = run(_beside_others, spec, 6, -(first.start_s + 0.01), limit_s=60.0)
    assert (how(undisturbed), how(cut_short)) == ("catch_up", "one_shot")
    assert cut_short.end is not None
    extends = [span for span in cut_short.end.timeline.spans if span.name == "extend"]
    assert len(extends) > 1  # it had begun
    assert extends[0].start_s == first.start_s
    assert extends[-1].end_s > last.start_s
