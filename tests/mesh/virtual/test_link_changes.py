"""A line that falls to a tenth of its rate under load, and comes back: routing follows, and no request fails."""

from __future__ import annotations

import asyncio

from gateway.handoff.machine import Pipeline
from gateway.routing.plan import Plan
from tests.mesh.gateway.asking import Observed
from tests.mesh.virtual.asking import prompt_of
from tests.mesh.virtual.caching import PUBLISHED_S, asked, at_rest, cached_mesh, line
from virtual.clock import run
from virtual.mesh import running_mesh

MBIT = 10_000.0
RATE_S = 20.0  # requests
DOCUMENTS = 8
DOCUMENT_TOKENS, SHORT_TOKENS, LONG_TOKENS = 768, 40, 320  # the long ones lack 5 blocks on main, the short ones none or one
FALLS_S, RISES_S, ENDS_S = 1.0, 4.0, 7.5
FOLLOWS_S = 2.0


class Timed(Observed):
    def __init__(self) -> None:
        super().__init__()
        self.log: list[tuple[float, int, Plan]] = []  # with the time and the prompt's tokens

    def planned(self, plan: Plan, prompt_tokens: int) -> None:
        super().planned(plan, prompt_tokens)
        self.log.append((asyncio.get_running_loop().time(), prompt_tokens, plan))

    def of_long(self, from_s: float, until_s: float) -> list[Plan]:
        long = DOCUMENT_TOKENS + LONG_TOKENS
        return [plan for at_s, tokens, plan in self.log if tokens == long and from_s <= at_s < until_s]


def test_routing_follows_the_line_and_no_request_fails() -> None:
    observed = Timed()

    async def load() -> float:
        async with running_mesh(cached_mesh(MBIT, relays=2), observed) as mesh:
            documents = [prompt_of(DOCUMENT_TOKENS, seed) for seed in range(DOCUMENTS)]
            for document in documents:
                await asked(mesh, document, 5)
            await asyncio.sleep(PUBLISHED_S)
            loop = asyncio.get_running_loop()
            began_s = loop.time()
            loop.call_at(began_s + FALLS_S, mesh.set_link, line(MBIT / 10))
            loop.call_at(began_s + RISES_S, mesh.set_link, line(MBIT))
            async with asyncio.TaskGroup() as group:
                for number in range(round(ENDS_S * RATE_S)):
                    tokens = LONG_TOKENS if number % 4 == 0 else SHORT_TOKENS
                    prompt = (*documents[number % DOCUMENTS], *prompt_of(tokens, 1000 + number))
                    group.create_task(asked(mesh, prompt, 40))
                    await asyncio.sleep(1 / RATE_S)
            await at_rest(mesh)
        return began_s

    began_s = run(load, limit_s=600.0)
    falls_s, rises_s, ends_s = (began_s + after_s for after_s in (FALLS_S, RISES_S, ENDS_S))
    assert {plan.pipeline for plan in observed.of_long(began_s, falls_s)} == {Pipeline.DIRECT}
    assert Pipeline.DIRECT not in {plan.pipeline for plan in observed.of_long(falls_s + FOLLOWS_S, rises_s)}
    assert {plan.pipeline for plan in observed.of_long(rises_s + FOLLOWS_S, ends_s)} == {Pipeline.DIRECT}
