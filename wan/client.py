"""Asks a running WAN relay for a forwarded port.

Called by a main decoder, before it advertises itself and then again and again, because a relay that restarts has forgotten its
forwards; and by the command line. Owns nothing.
"""

from __future__ import annotations

import asyncio

import aiohttp

from pdd.rpc.errors import StartupError

DEADLINE_S = 10.0  # at first, for a relay that is still starting
REQUEST_TIMEOUT_S = 3.0

_PAUSE_S = 0.2


class WanUnavailable(StartupError):
    """The relay's control API can't be reached, or refuses; the text names it."""


async def lease_forward(control_url: str, name: str, target: str, patience_s: float = DEADLINE_S) -> str:
    """The "host:port" under which the other site reaches `target` ("host:port"); the same for a name as long as the relay runs.

    Tries for `patience_s` where the relay does not answer yet, at least once. Raises WanUnavailable.
    """
    url = control_url.rstrip("/") + "/forwards"
    timeout = aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_S)
    deadline_s = asyncio.get_running_loop().time() + patience_s
    async with aiohttp.ClientSession(timeout=timeout) as session:
        while True:
            try:
                async with session.post(url, json={"name": name, "target": target}) as response:
                    return _address(url, response.status, await response.json(content_type=None))
            except (aiohttp.ClientError, TimeoutError, ValueError) as error:
                if asyncio.get_running_loop().time() >= deadline_s:
                    reason = str(error) or type(error).__name__
                    raise WanUnavailable(f"the WAN relay's control API at {control_url} can't be used: {reason}") from error
            await asyncio.sleep(_PAUSE_S)


def _address(url: str, status: int, body: object) -> str:
    if status == 200 and isinstance(body, dict) and isinstance(body.get("address"), str):
        address: str = body["address"]
        return address
    raise WanUnavailable(f"the WAN relay refuses POST {url} with {status}: {body}")
