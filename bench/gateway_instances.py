"""Prefill, relay and main that cost next to nothing: one process that speaks the mesh's protocols and answers with canned tokens.

Started by `gateway_mesh` for `bench/gateway.py`; `gateway_sessions` is what they say. No KV moves, nothing is computed: prefill
answers at once, a relay decodes from the commit, a main has its KV when the relay is `--eager` tokens in (at the commit, where
there is no relay) and decodes from its last Extend. A decoder answers one frame a step for all its handles. The decoders step
together: every `--pace-ms` or, at 0, as soon as the streams have taken what the last step made.

What was asked and made so far stands in the file `--counters`: three 64-bit numbers, requests, tokens and decoders' frames.
"""

from __future__ import annotations

import argparse
import asyncio
import mmap
import random
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import grpc.aio

from bench.gateway_sessions import COUNTERS, SLOTS, DecodeSession, PrefillSession, Site
from pdd.catalog.base import Registration, Role
from pdd.catalog.heartbeat import heartbeat
from pdd.catalog.redis import RedisRegistry
from pdd.identity import Instance, new_incarnation
from pdd.kv.layout import SIM_DIGEST, KvLayout
from pdd.model.load import load_card
from pdd.rpc.attach import hello_from, serve_attached
from pdd.rpc.run import run_service
from pdd.rpc.server import serve
from pdd.v1 import decode_pb2, decode_pb2_grpc, prefill_pb2, prefill_pb2_grpc

# Words, code, digits, and characters that are several tokens each.
TEXT = (
    "The sea wall held through the night, and by morning the harbour was quiet again: forty boats, two of them adrift, and a "
    "café that had opened before the storm was over. “Nobody sleeps in weather like that,” said the owner; she had sold 212 cups "
    "since midnight, at €2.50 each. In `log.txt` the keeper wrote: wind NNW 9, visibility < 1 km, then a line that he crossed "
    "out. 你好, the radio said on channel 16, and a minute later: 🌊 is over, thank you, good night.\n\n"
)


class Prefill(prefill_pb2_grpc.PrefillServicer):
    def __init__(self, site: Site, instance: Instance) -> None:
        self._site = site
        self._hello = prefill_pb2.PrefillFrame(hello=hello_from(instance))

    async def Attach(self, request_iterator: object, context: Any) -> None:  # type: ignore[override]
        await serve_attached(context, PrefillSession(self._site), self._hello)

    def register(self, server: grpc.aio.Server) -> Sequence[str]:
        prefill_pb2_grpc.add_PrefillServicer_to_server(self, server)
        return ["pdd.v1.Prefill"]


class Decoder(decode_pb2_grpc.DecodeServicer):
    def __init__(self, site: Site, instance: Instance, role: Role) -> None:
        self._site = site
        self._role = role
        self._hello = decode_pb2.DecodeFrame(hello=hello_from(instance))

    async def Attach(self, request_iterator: object, context: Any) -> None:  # type: ignore[override]
        session = DecodeSession(self._site, self._role)
        self._site.decoders.append(session)
        pace = asyncio.create_task(session.keep_pace()) if self._site.pace_s else None
        try:
            await serve_attached(context, session, self._hello)
        finally:
            if pace is not None:
                pace.cancel()

    def register(self, server: grpc.aio.Server) -> Sequence[str]:
        decode_pb2_grpc.add_DecodeServicer_to_server(self, server)
        return ["pdd.v1.Decode"]


@contextmanager
def shared_counters(path: Path) -> Iterator[mmap.mmap]:
    with path.open("r+b") as file, mmap.mmap(file.fileno(), COUNTERS.size) as view:
        yield view


async def serve_instances(options: argparse.Namespace, stop: asyncio.Event) -> None:
    card = load_card("llama", options.model_dir)
    layout = KvLayout(card.model_digest, card.tokenizer_digest, 1, 1, 1, 16, (SIM_DIGEST,), 16, "canned")
    roles = (Role.PREFILL, Role.RELAY, Role.MAIN) if options.relayed else (Role.PREFILL, Role.MAIN)
    async with AsyncExitStack() as stack:
        counters = stack.enter_context(shared_counters(options.counters))
        site = Site(card.encode(TEXT), options.pace_ms / 1000, options.eager, options.relayed, counters)
        registry = await stack.enter_async_context(RedisRegistry(options.redis))
        for role in roles:
            instance = Instance(f"{role.value}-0", new_incarnation(random.SystemRandom().getrandbits))
            servicer = Prefill(site, instance) if role is Role.PREFILL else Decoder(site, instance, role)
            server = await stack.enter_async_context(serve("127.0.0.1:0", servicer.register))
            registration = Registration(instance, role, "a", server.address, layout, card.context_tokens, SLOTS)
            await stack.enter_async_context(heartbeat(registry, partial(_same, registration)))
        await stop.wait()


def _same(registration: Registration) -> Registration:
    return registration


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--redis", required=True)
    parser.add_argument("--model-dir", type=Path, required=True)
    parser.add_argument("--counters", type=Path, required=True)
    parser.add_argument("--pace-ms", type=float, required=True)
    parser.add_argument("--eager", type=int, required=True)
    parser.add_argument("--relayed", action="store_true")
    options = parser.parse_args()
    run_service(partial(serve_instances, options), log_level="warning", service="instances")


if __name__ == "__main__":
    main()
