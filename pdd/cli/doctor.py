"""`pdd doctor`: checks the deployment that this machine's gateway belongs to, and says what to fix.

Reads the gateway's settings from the environment, so it is run where the gateway runs. This is where it takes the wall clock.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import orjson
import typer
import uvloop
from rich.console import Console

from pdd.cli.console import plain_console
from pdd.doctor.checks import examine
from pdd.doctor.collect import Deployment, collect
from pdd.doctor.facts import Claims
from pdd.doctor.show import as_json, draw
from pdd.model.load import load_card
from pdd.model.manifest import ModelFilesError
from pdd.rpc.errors import StartupError
from pdd.rpc.run import EXIT_USAGE, read_settings
from pdd.rpc.server import split_address

_ANY_HOSTS = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}  # where one listens, and where one is then found


def doctor(
    json: Annotated[bool, typer.Option("--json", help="Print facts and findings as JSON.")] = False,
    gateway: Annotated[bool, typer.Option(help="Ask the gateway at PDD_HTTP, too.")] = True,
    probe: Annotated[bool, typer.Option(help="Measure the line to each main: up to 16 MiB or 1.5 s of bytes.")] = True,
) -> None:
    """Check a deployment, in about 5 s, and say what to fix. Exit code 0: no fault; 1: a fault; 2: wrong usage or settings."""
    try:
        deployment, claims = _settings(gateway, probe)
        facts = uvloop.run(collect(deployment, _wall_clock_s))
    except (StartupError, ModelFilesError) as error:
        plain_console(stderr=True).print(f"pdd doctor: {error}")
        raise typer.Exit(EXIT_USAGE) from error
    findings = examine(facts, claims)
    told = as_json(facts, findings)
    if json:
        plain_console().print(orjson.dumps(told, option=orjson.OPT_INDENT_2).decode())
    else:
        Console(highlight=False, emoji=False).print(draw(facts, findings))
    raise typer.Exit(0 if told["ok"] else 1)


def _wall_clock_s() -> float:
    return datetime.now(UTC).timestamp()  # noqa: TID251  # what others' clocks are compared with


def _settings(gateway: bool, probe: bool) -> tuple[Deployment, Claims]:
    # Imported here, so that the other commands do not load the gateway.
    from gateway.config import GatewaySettings
    from gateway.mesh.settings import MeshSettings
    from gateway.routing.routes import needed_roles

    settings, mesh = read_settings(GatewaySettings, "pdd doctor"), read_settings(MeshSettings, "pdd doctor")
    card = load_card(settings.engine, settings.model_dir)
    host, port = split_address(settings.http)
    url = f"http://{_ANY_HOSTS.get(host, host)}:{port}" if gateway else None
    claims = Claims(mesh.wan_mbit, card.model_digest, card.tokenizer_digest, needed_roles(mesh.pipeline.forced))
    return Deployment(settings.redis_url, url, probe), claims
