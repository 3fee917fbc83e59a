"""`pdd up`: the whole mesh on this machine, until it is told to stop."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from pdd.cli.cluster import LocalMesh, MeshStartError
from pdd.cli.console import CommandError, ended_by_signal, plain_console, run
from pdd.cli.options import (
    DEFAULT_MODEL_DIR,
    EngineOption,
    HandoffOption,
    LogDirOption,
    ModelDirOption,
    PipelineOption,
    RateOption,
    RttOption,
    mesh_options,
)
from pdd.cli.plan import DEFAULT_RATE_MBIT, DEFAULT_RTT_MS, EngineName, Handoff, MeshOptions, Pipeline
from pdd.cli.preflight import check_engine


def up(
    engine: EngineOption = EngineName.LLAMA,
    rtt: RttOption = DEFAULT_RTT_MS,
    rate: RateOption = DEFAULT_RATE_MBIT,
    relays: Annotated[int, typer.Option(min=0, help="Relay decoders, in site a.")] = 1,
    mains: Annotated[int, typer.Option(min=1, help="Main decoders, in site b.")] = 1,
    prefills: Annotated[int, typer.Option(min=1, help="Prefill instances, in site a.")] = 1,
    gateway_workers: Annotated[
        int, typer.Option(min=1, max=64, envvar="PDD_WORKERS", help="Processes of the gateway, which share its ports.")
    ] = 1,
    pipeline: PipelineOption = Pipeline.AUTO,
    handoff: HandoffOption = Handoff.AUTO,
    http: Annotated[str, typer.Option(help="Address of the OpenAI-compatible API; port 0 takes a free one.")] = "127.0.0.1:8000",
    grpc: Annotated[str, typer.Option(help="Address of the gRPC API.")] = "127.0.0.1:50050",
    wan_control: Annotated[str, typer.Option(help="Address of the link's control API.")] = "127.0.0.1:8474",
    model_dir: ModelDirOption = DEFAULT_MODEL_DIR,
    redis_url: Annotated[str | None, typer.Option(help="A Redis to register in, else an embedded Valkey is started.")] = None,
    log_dir: LogDirOption = None,
) -> None:
    """Start registry, link, prefill, relays, mains and gateway as local processes. Ctrl-C or SIGTERM stops them all."""
    options = mesh_options(
        engine=engine,
        pipeline=pipeline,
        handoff=handoff,
        prefills=prefills,
        relays=relays,
        mains=mains,
        gateway_workers=gateway_workers,
        rtt_ms=rtt,
        rate_mbit=rate,
        http=http,
        grpc=grpc,
        wan_control=wan_control,
        model_dir=model_dir.absolute(),
        redis_url=redis_url,
        log_dir=log_dir,
    )
    run(_up(options, plain_console()))


async def _up(options: MeshOptions, console: Console) -> None:
    check_engine(options.engine, options.model_dir)
    console.print(describe(options))
    with ended_by_signal(lambda: console.print("stopping; press Ctrl-C once more to kill")):
        try:
            async with LocalMesh(options, console.print) as mesh:
                console.print(_welcome(mesh))
                await _watch(mesh, console)
        except MeshStartError as error:
            raise CommandError(str(error)) from error
    console.print("stopped")


def describe(options: MeshOptions) -> str:
    """What is about to start, in a line."""
    return (
        f"starting a mesh: engine {options.engine.value}, pipeline {options.pipeline.value}, handoff {options.handoff.value}; "
        f"link between the sites {options.rate_mbit:g} Mbit/s, {options.rtt_ms:g} ms RTT"
    )


async def _watch(mesh: LocalMesh, console: Console) -> None:
    """Report processes that end by themselves. Raises CommandError where the gateway does: nothing can be asked then."""
    while True:
        ended = await mesh.exits.get()
        console.print(f"{ended}. The end of its log:\n{ended.tail}")
        if ended.name == "gateway":
            raise CommandError("the gateway is gone: the mesh was stopped")


def _welcome(mesh: LocalMesh) -> str:
    port_of_grpc = "" if mesh.grpc_address == "127.0.0.1:50050" else f" --url {mesh.grpc_address}"
    return "\n".join(
        (
            f"OpenAI API:   {mesh.http_url}/v1",
            f"gRPC API:     {mesh.grpc_address}",
            f"link control: {mesh.wan_control_url}/link",
            f'ready. Ask it something: pdd ask{port_of_grpc} "…"   Stop it: Ctrl-C',
        )
    )
