"""What joins a request late, and then something else goes wrong, at any time: nothing stays behind, and no wrong text.

A direct answer finds its line throttled, so that a relay joins and main takes over in the end.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from gateway.generation import MeshError, MeshErrorCode
from tests.mesh.virtual.asking import Answer, ask, greedy, prompt_of
from tests.mesh.virtual.caching import Saboteur, at_rest, cached_mesh, line, right
from virtual.clock import run
from virtual.mesh import VirtualMesh, running_mesh

FAST_MBIT, SLOW_MBIT = 20_000.0, 2000.0
PROMPT, SAMPLING = prompt_of(1000), greedy(150)
STEPS, STEP_S = 20, 0.06  # 1.2 s: from the plan to the end

Misfortune: TypeAlias = Callable[[VirtualMesh, asyncio.Task[Answer]], Awaitable[None]]


async def struck(misfortune: Misfortune, after_s: float) -> Answer | BaseException:
    observed = Saboteur()
    async with running_mesh(cached_mesh(FAST_MBIT), observed) as mesh:
        observed.then = lambda: mesh.set_link(line(SLOW_MBIT))
        running = asyncio.get_running_loop().create_task(ask(mesh.gateway, PROMPT, SAMPLING))
        await asyncio.sleep(after_s)
        await misfortune(mesh, running)
        (found,) = await asyncio.gather(running, return_exceptions=True)
        await at_rest(mesh)
    return found


def all_ends(misfortune: Misfortune) -> list[Answer | MeshErrorCode | None]:
    """The answers, found to be right; codes of failures; None where the client had left."""
    ends: list[Answer | MeshErrorCode | None] = []
    for step in range(STEPS):
        found = run(struck, misfortune, (step + 0.5) * STEP_S, limit_s=600.0)
        match found:
            case Answer():
                right(found, PROMPT, SAMPLING)
                ends.append(found)
            case MeshError(code=code):
                ends.append(code)
            case asyncio.CancelledError():
                ends.append(None)
            case _:
                raise found
    return ends


async def nothing(mesh: VirtualMesh, running: asyncio.Task[Answer]) -> None:
    pass


async def client_leaves(mesh: VirtualMesh, running: asyncio.Task[Answer]) -> None:
    running.cancel()


def by_turns(name: str) -> Misfortune:
    """The instance crashes in every other run, and stops in good order in the others."""
    turns = itertools.cycle([True, False])

    async def misfortune(mesh: VirtualMesh, running: asyncio.Task[Answer]) -> None:
        await mesh.stop(name, crash=next(turns))

    return misfortune


def makers(ends: list[Answer | MeshErrorCode | None]) -> list[tuple[bool, bool] | MeshErrorCode | None]:
    """Of each answer whether the relay and main made tokens of it."""
    return [(one.made_by("relay") > 0, one.made_by("main") > 0) if isinstance(one, Answer) else one for one in ends]


def test_the_sweep_goes_through_all_stages() -> None:
    answer = run(struck, nothing, 0.0, limit_s=600.0)
    assert isinstance(answer, Answer)
    assert answer.made_by("relay") > 20
    assert answer.made_by("main") > 20
    assert 0.8 < (answer.arrived_s[-1] - answer.asked_s) / (STEPS * STEP_S) < 1.0


def test_a_client_may_leave_at_any_stage() -> None:
    assert all_ends(client_leaves).count(None) >= STEPS - 2


def test_a_relay_that_joined_may_die_at_any_stage() -> None:
    ends = makers(all_ends(by_turns("relay-0")))
    assert set(ends) == {(False, True), (True, True)}
    assert ends[-1] == (True, True)


def test_a_prefill_is_needed_until_the_relay_has_its_kv() -> None:
    ends = makers(all_ends(by_turns("prefill-0")))
    lost = ends.count(MeshErrorCode.PEER_LOST)
    assert 0 < lost < STEPS / 3
    assert set(ends[lost:]) == {(True, False), (True, True)}


def test_a_main_is_not_needed_until_it_has_taken_over() -> None:
    ends = makers(all_ends(by_turns("main-0")))
    made_without = ends.count((True, False))
    assert made_without > STEPS / 2
    assert set(ends[:made_without]) == {(True, False)}
    assert set(ends[made_without:]) == {MeshErrorCode.PEER_LOST, (True, True)}  # the last: it was over
