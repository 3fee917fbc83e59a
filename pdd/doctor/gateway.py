"""What the gateway says at /ready. Called by `collect`."""

from __future__ import annotations

import aiohttp
from pydantic import BaseModel, ValidationError

from pdd.doctor.facts import GatewayAway, GatewayFacts

TIMEOUT_S = 3.0


class _Ready(BaseModel):
    status: str
    missing: tuple[str, ...] = ()
    degraded: tuple[str, ...] = ()


async def look_at_gateway(url: str) -> GatewayFacts | GatewayAway:
    """`url` is http://host:port."""
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
    try:
        async with aiohttp.ClientSession(timeout=timeout) as session, session.get(f"{url}/ready") as response:
            said = _Ready.model_validate_json(await response.read())
    except (aiohttp.ClientError, TimeoutError) as error:
        return GatewayAway(url, str(error) or f"no answer in {TIMEOUT_S:g} s")
    except ValidationError:
        return GatewayAway(url, f"what answers there (HTTP {response.status}) is no gateway")
    return GatewayFacts(url, said.missing, said.degraded)
