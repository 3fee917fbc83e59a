"""`python -m gateway [--workers N]`: the model's card, the mesh, and both public APIs before it.

Composes them, and is the one place that takes randomness and the wall clock from the system. With several workers this process
only keeps them running (`workers`); each is this program once more, with `--worker` and its number.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import grpc.aio
from prometheus_client import CollectorRegistry, ProcessCollector

from gateway.answer import Answers
from gateway.config import GatewaySettings
from gateway.detokenizer import Vocabulary
from gateway.inference import SERVICE, Inference
from gateway.merged import FOLDER_VARIABLE, merged_registry
from gateway.mesh.mesh import Mesh
from gateway.mesh.settings import MeshSettings
from gateway.metrics import GatewayMetrics, MeshMetrics
from gateway.openai.api import Api
from gateway.openai.server import build_app, serve_http
from gateway.prompting import Prompting
from gateway.workers import Worker, serve_workers
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
from pdd.tracing.running import running_tracer
from pdd.tracing.settings import TraceSettings
from pdd.v1 import inference_pb2_grpc

WHOLE_TIMEOUT_S = 5.0  # for which a worker waits for the mesh before it takes connections from the others
_WHOLE_POLL_S = 0.05

log = get_logger(__name__)


async def serve_alone(
    settings: GatewaySettings, mesh_settings: MeshSettings, trace_settings: TraceSettings, stop: asyncio.Event
) -> None:
    """Be the whole gateway until `stop` is set. Raises StartupError."""
    metrics = CollectorRegistry()
    ProcessCollector(registry=metrics)
    await serve_gateway(settings, mesh_settings, trace_settings, metrics, None, stop)


async def serve_as_worker(
    number: int, settings: GatewaySettings, mesh_settings: MeshSettings, trace_settings: TraceSettings, stop: asyncio.Event
) -> None:
    """Be one of several until `stop` is set. Raises StartupError."""
    async with merged_registry(number, Path(os.environ[FOLDER_VARIABLE])) as metrics:
        await serve_gateway(settings, mesh_settings, trace_settings, metrics, Worker(metrics), stop)


async def serve_gateway(
    settings: GatewaySettings,
    mesh_settings: MeshSettings,
    trace_settings: TraceSettings,
    metrics: CollectorRegistry,
    worker: Worker | None,  # where this is one of several
    stop: asyncio.Event,
) -> None:
    """Serve until `stop` is set. Raises StartupError."""
    random_bits = random.SystemRandom().getrandbits  # noqa: TID251  # chance comes in here
    card = _card(settings)
    gateway = Instance(settings.instance_id, new_incarnation(random_bits))
    observer = MeshMetrics(metrics)
    async with (
        running_tracer(trace_settings, "gateway", gateway, random_bits=random_bits, unix_offset_s=_unix_offset_s) as tracer,
        RedisRegistry(settings.redis_url) as registry,
        RedisPrefixCatalog(settings.redis_url) as catalog,
        Mesh(mesh_settings, registry, catalog, card, gateway=gateway, observer=observer) as mesh,
    ):
        observer.watch_catalog(lambda: mesh.catalog_synced)
        prompting = Prompting(card, lambda: _context_tokens(card, mesh), random_bits)
        answers = Answers(mesh, Vocabulary(card.tokenizer), GatewayMetrics(metrics), tracer)
        api = Api(
            prompting,
            answers,
            new_id=lambda: f"{random_bits(96):024x}",
            unix_time_s=_unix_time_s,
            write_deadline_s=settings.write_deadline_s,
            body_deadline_s=settings.body_deadline_s,
        )
        if worker is not None:
            await _until_whole(mesh, stop)
        await _serve_apis(settings, api, worker, stop)


def _unix_time_s() -> float:
    return datetime.now(UTC).timestamp()  # noqa: TID251  # and the date, for answers and traces


def _unix_offset_s() -> float:
    return _unix_time_s() - time.monotonic()  # noqa: TID251  # which is the loop's clock


async def _until_whole(mesh: Mesh, stop: asyncio.Event) -> None:
    """Wait until requests are served here as well as by the other workers, though not for ever: it may be nobody's case."""
    with suppress(TimeoutError):
        async with asyncio.timeout(WHOLE_TIMEOUT_S):
            while not stop.is_set() and (mesh.missing_roles() or mesh.degraded()):  # noqa: ASYNC110  # there is no event
                await asyncio.sleep(_WHOLE_POLL_S)


async def _serve_apis(settings: GatewaySettings, api: Api, worker: Worker | None, stop: asyncio.Event) -> None:
    shares_port = worker is not None
    inference = Inference(api.prompting, api.answers, api.new_id, settings.write_deadline_s)
    async with (
        serve_http(settings.http, build_app(api, settings.max_body_bytes), shares_port=shares_port) as http,
        serve(settings.listen, _registering(inference), shares_port=shares_port) as rpc,
    ):
        log.info("ready", instance=settings.instance_id, http=f"http://{http}", grpc=rpc.address, model=api.prompting.card.name)
        if worker is not None:
            worker.serves()
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
    arguments = _arguments()
    if arguments.workers is not None:
        os.environ["PDD_WORKERS"] = arguments.workers  # checked with all other settings
    settings, mesh_settings = read_settings(GatewaySettings, "gateway"), read_settings(MeshSettings, "gateway")
    trace_settings = read_settings(TraceSettings, "gateway")
    serving = partial(serve_alone, settings, mesh_settings, trace_settings)
    if arguments.worker is not None:
        serving = partial(serve_as_worker, arguments.worker, settings, mesh_settings, trace_settings)
    elif settings.workers > 1:
        serving = partial(serve_workers, settings, os.environ)
    run_service(serving, log_level=settings.log_level, service=settings.instance_id)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser("gateway", description="The gateway of a mesh; its settings are environment variables.")
    parser.add_argument("--workers", metavar="N", help="processes that share both ports, as PDD_WORKERS says it")
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)  # its number; given by the parent alone
    return parser.parse_args()


if __name__ == "__main__":
    main()
