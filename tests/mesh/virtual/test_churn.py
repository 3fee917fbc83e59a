"""Conversations while line, instances and catalog come and go: an answer is right or an error, and nothing stays behind."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from random import Random

import pytest

from gateway.generation import MeshError
from pdd.catalog.base import Role
from tests.mesh.virtual.asking import ask, greedy, prompt_of
from tests.mesh.virtual.caching import BLOCK_BYTES, FaultyCatalog, at_rest, cached_mesh, faulty, line, right
from virtual.clock import run
from virtual.mesh import MeshSpec, VirtualMesh, running_mesh
from wan.link import Outage

RATES_MBIT = (300.0, 2000.0, 20_000.0)
CONVERSATIONS, TURNS = 10, 4
STRIKES = 12
CACHED_BLOCKS = 40  # fewer than there are, so that some are evicted


@pytest.mark.parametrize("seed", range(8))
def test_an_answer_is_right_or_an_error_and_nothing_stays_behind(seed: int) -> None:
    ends = run(churn, seed, seed=seed, limit_s=3600.0)
    assert ends["right"] > CONVERSATIONS


async def churn(seed: int) -> Counter[str]:
    """How many requests ended which way."""
    random, ends = Random(seed), Counter[str]()
    async with running_mesh(_spec(seed), make_catalog=FaultyCatalog) as mesh:
        async with asyncio.TaskGroup() as group:
            for number in range(CONVERSATIONS):
                group.create_task(_converse(mesh, Random(f"{seed} {number}"), ends))
            for _ in range(STRIKES):
                await asyncio.sleep(random.uniform(0.1, 0.8))
                await _strike(mesh, random)
        mesh.set_link(line(RATES_MBIT[-1]))
        await at_rest(mesh)
    return ends


def _spec(seed: int) -> MeshSpec:
    spec = cached_mesh(2000.0, prefills=2, relays=2, mains=2, relay_slots=2)
    cache_bytes = CACHED_BLOCKS * BLOCK_BYTES
    small = [
        one if one.role is Role.RELAY else replace(one, kv_budget_bytes=4 * cache_bytes, prefix_cache_bytes=cache_bytes)
        for one in spec.instances
    ]
    return replace(spec, instances=tuple(small), seed=seed)


async def _converse(mesh: VirtualMesh, random: Random, ends: Counter[str]) -> None:
    prompt = prompt_of(random.choice((200, 700, 1500)), random.randrange(3))
    for _ in range(TURNS):
        await asyncio.sleep(random.uniform(0.0, 1.5))
        sampling = greedy(random.choice((1, 20, 150)))
        expected_tokens = random.choice((None, None, 10))
        try:
            async with asyncio.timeout(random.choice((0.3, None, None))):
                answer = await ask(mesh.gateway, prompt, sampling, expected_tokens=expected_tokens)
        except TimeoutError:
            ends["left"] += 1
        except MeshError as error:
            ends[error.code.value] += 1
        else:
            right(answer, prompt, sampling)
            ends["right"] += 1
            prompt += (*answer.tokens, *prompt_of(random.choice((10, 100)), random.randrange(1000)))


async def _strike(mesh: VirtualMesh, random: Random) -> None:
    match random.choice(("line", "line", "black hole", "flush", "away", "restart", "restart")):
        case "line":
            mesh.set_link(line(random.choice(RATES_MBIT)))
        case "black hole":
            mesh.set_link(line(RATES_MBIT[-1], Outage.BLACK_HOLE))
            await asyncio.sleep(random.uniform(0.05, 1.0))
            mesh.set_link(line(RATES_MBIT[-1]))
        case "flush":
            faulty(mesh).flush()
        case "away":
            faulty(mesh).away = True
            await asyncio.sleep(random.uniform(0.1, 2.0))
            faulty(mesh).away = False
        case "restart":
            name = random.choice(sorted(mesh.instances))
            await mesh.stop(name, crash=random.random() < 0.5)
            await asyncio.sleep(random.choice((0.0, 0.3)))
            await mesh.start(name)
