"""The `pdd` program: one command per module, put together here."""

from __future__ import annotations

import typer

from pdd.cli.ask import ask
from pdd.cli.demo import demo
from pdd.cli.doctor import doctor
from pdd.cli.health import health
from pdd.cli.model import fetch_model
from pdd.cli.up import up

app = typer.Typer(
    name="pdd",
    help="Prefill, relay decode, main decode: one request over two sites.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
model_app = typer.Typer(help="Model files.", no_args_is_help=True)
model_app.command("fetch")(fetch_model)

app.command()(up)
app.command()(ask)
app.command()(demo)
app.command()(doctor)
app.command()(health)
app.add_typer(model_app, name="model")
