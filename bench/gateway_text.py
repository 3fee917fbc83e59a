"""Before `bench/gateway.py` measures: does the gateway say what the instances made?"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import aiohttp
import orjson

from bench.gateway_instances import TEXT
from pdd.model.load import load_card


async def check_text(http: str, body: Mapping[str, object], model_dir: Path) -> None:
    """Ask once, streamed as the clients will. Raises RuntimeError where the text is not the canned one."""
    tokens = body["max_tokens"]
    assert isinstance(tokens, int)
    said = ""
    async with aiohttp.ClientSession(f"http://{http}") as session, session.post("/v1/chat/completions", json=body) as response:
        async for line in response.content:
            if line.startswith(b"data: {"):
                said += orjson.loads(line[6:])["choices"][0]["delta"].get("content", "")
    card = load_card("llama", model_dir)
    ids = card.encode(TEXT)
    meant = card.tokenizer.decode([ids[index % len(ids)] for index in range(tokens)])
    if said != meant.removesuffix("\N{REPLACEMENT CHARACTER}"):  # the last character may be cut short, and stays unsaid
        raise RuntimeError(f"the gateway said {said!r}, the instances {meant!r}")
