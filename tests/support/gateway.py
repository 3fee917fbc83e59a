"""A running gateway, asked over HTTP as a client and an operator would."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from tests.eventually import POLL_S
from tests.support.process import DEADLINE_S

ASK_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer in one piece."""

    status: int
    body: Mapping[str, Any]
    plan: Mapping[str, str]  # the pairs of x-pdd-plan

    @property
    def text(self) -> str:
        assert self.status == 200, self.body
        text: str = self.body["choices"][0]["text"]
        return text

    @property
    def main_hit_tokens(self) -> int:
        return int(self.plan["main_hit_tokens"])

    @property
    def prefill_hit_tokens(self) -> int:
        return int(self.plan["prefill_hit_tokens"])


class GatewayClient:
    def __init__(self, url: str, session: aiohttp.ClientSession, model: str = "pdd-sim") -> None:
        self.url = url
        self._session = session
        self._model = model

    async def ask(self, ids: Sequence[int], count: int, expected_tokens: int | None = None) -> Reply:
        """`count` greedy tokens after `ids`. `expected_tokens` is what routing is told of the answer's length."""
        body = {"model": self._model, "prompt": list(ids), "max_tokens": count, "temperature": 0, "ignore_eos": True}
        headers = {} if expected_tokens is None else {"x-pdd-expected-tokens": str(expected_tokens)}
        async with self._session.post(f"{self.url}/v1/completions", json=body, headers=headers) as response:
            plan = dict(pair.split("=", 1) for pair in response.headers.get("x-pdd-plan", "").split("; ") if pair)
            return Reply(response.status, await response.json(), plan)

    async def ready(self) -> Mapping[str, Any]:
        """What /ready says."""
        async with self._session.get(f"{self.url}/ready") as response:
            body: Mapping[str, Any] = await response.json()
            return body

    async def is_up(self) -> bool:
        try:
            async with self._session.get(f"{self.url}/ready") as response:
                return response.status == 200
        except aiohttp.ClientError:
            return False

    async def metric(self, name: str, **labels: str) -> float:
        """The samples of /metrics that have these labels, added up."""
        async with self._session.get(f"{self.url}/metrics") as response:
            page = await response.text()
        samples = (sample for family in text_string_to_metric_families(page) for sample in family.samples if sample.name == name)
        return sum(sample.value for sample in samples if labels.items() <= sample.labels.items())

    async def until(self, name: str, value: float, **labels: str) -> None:
        """Return once the metric has that value. Raises TimeoutError."""
        async with asyncio.timeout(DEADLINE_S):
            while await self.metric(name, **labels) != value:  # noqa: ASYNC110
                await asyncio.sleep(POLL_S)

    async def until_connected(self, *instances: str) -> None:
        for instance in instances:
            await self.until("pdd_instance_connected", 1, instance_id=instance)


@asynccontextmanager
async def asking(url: str, model: str = "pdd-sim") -> AsyncIterator[GatewayClient]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=ASK_TIMEOUT_S)) as session:
        yield GatewayClient(url, session, model)
