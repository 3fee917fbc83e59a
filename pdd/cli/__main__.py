"""`python -m pdd.cli` is `pdd`."""

from pdd.cli.main import app

app(prog_name="pdd")
