"""`python -m gateway`: the model's card, the mesh, and both public APIs before it.

Composes them, and is the one place that takes randomness and the wall clock from the system.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial

import grpc.aio
from prometheus_client import CollectorRegistry, ProcessCollector

from gateway.answer import Answers
from gateway.config import GatewaySettings
from gateway.detokenizer import Vocabulary
from gateway.inference import SERVICE, Inference
from gateway.mesh.mesh import Mesh
from gateway.mesh.settings import MeshSettings
from gateway.metrics import GatewayMetrics, MeshMetrics
from gateway.openai.api import Api
from gateway.openai.server import build_app, serve_http
from gateway.prompting import Prompting
from pdd.catalog.redis import RedisRegistry
from pdd.catalog.redis_prefixes import RedisPrefixCatalog
from pdd.identity import Instance, new_incarnation
from pdd.model.card import ModelCard
from pdd.model.load import load_card
from pdd.model.manifest import ModelFilesError
from pdd.rpc.errors import StartupError
from pdd.rpc.run import read_settings, run_service
from pdd.rpc.server import serve
from pdd.telemetry import get_logger
from pdd.v1 import inference_pb2_grpc

log = get_logger(__name__)


async def serve_gateway(settings: GatewaySettings, mesh_settings: MeshSettings, stop: asyncio.Event) -> None:
    """Serve until `stop` is set. Raises StartupError."""
    random_bits = random.SystemRandom().getrandbits  # noqa: TID251  # chance comes in here
    card = _card(settings)
    gateway = Instance(settings.instance_id, new_incarnation(random_bits))
    metrics = CollectorRegistry()
    ProcessCollector(registry=metrics)
    observer = MeshMetrics(metrics)
    async with (
        RedisRegistry(settings.redis_url) as registry,
        RedisPrefixCatalog(settings.redis_url) as catalog,
        Mesh(mesh_settings, registry, catalog, card, gateway=gateway, observer=observer) as mesh,
    ):
        observer.watch_catalog(lambda: mesh.catalog_synced)
        prompting = Prompting(card, lambda: _context_tokens(card, mesh), random_bits)
        answers = Answers(mesh, Vocabulary(card.tokenizer), GatewayMetrics(metrics))
        api = Api(
            prompting,
            answers,
            new_id=lambda: f"{random_bits(96):024x}",
            unix_time_s=lambda: datetime.now(UTC).timestamp(),  # noqa: TID251  # and the date, for answers
            write_deadline_s=settings.write_deadline_s,
            body_deadline_s=settings.body_deadline_s,
        )
        await _serve_apis(settings, api, stop)


async def _serve_apis(settings: GatewaySettings, api: Api, stop: asyncio.Event) -> None:
    inference = Inference(api.prompting, api.answers, api.new_id, settings.write_deadline_s)
    async with (
        serve_http(settings.http, build_app(api, settings.max_body_bytes)) as http,
        serve(settings.listen, _registering(inference)) as rpc,
    ):
        log.info("ready", instance=settings.instance_id, http=f"http://{http}", grpc=rpc.address, model=api.prompting.card.name)
        await stop.wait()
        log.info("stopping", instance=settings.instance_id)


def _registering(inference: Inference) -> Callable[[grpc.aio.Server], Sequence[str]]:
    def register(server: grpc.aio.Server) -> Sequence[str]:
        inference_pb2_grpc.add_InferenceServicer_to_server(inference, server)
        return [SERVICE]

    return register


def _card(settings: GatewaySettings) -> ModelCard:
    try:
        return load_card(settings.engine, settings.model_dir)
    except ModelFilesError as error:
        raise StartupError(str(error)) from error


def _context_tokens(card: ModelCard, mesh: Mesh) -> int:
    """The model's bound, or what the instances offer where that is less."""
    offered = mesh.context_tokens()
    return card.context_tokens if offered is None else min(card.context_tokens, offered)


def main() -> None:
    settings, mesh_settings = read_settings(GatewaySettings, "gateway"), read_settings(MeshSettings, "gateway")
    run_service(partial(serve_gateway, settings, mesh_settings), log_level=settings.log_level, service=settings.instance_id)


if __name__ == "__main__":
    main()
