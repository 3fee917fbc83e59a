"""`make load`: the mesh of `pdd up --engine sim`, half a minute of load through both APIs, and its counters beside locust's.

Run as `python -m loadtest.smoke`; further arguments go to locust, behind its own. Exits with locust's code: other than 0 where a
request failed or the gateway has counted something else. The mesh and locust end with it, however it ends.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from pdd.cli.cluster import LocalMesh, MeshStartError
from pdd.cli.plan import EngineName, MeshOptions
from pdd.leash import leashed
from pdd.rpc.errors import StartupError

_LOCUSTFILE = Path(__file__).with_name("locustfile.py")
_RATE_MBIT = 200.0  # at which a few users see all three pipelines
_LOAD = ("--users", "8", "--spawn-rate", "4", "--run-time", "30s", "--stop-timeout", "30s")


def main() -> None:
    try:
        sys.exit(asyncio.run(smoke(sys.argv[1:])))
    except (MeshStartError, StartupError) as error:
        sys.exit(f"loadtest: {error}")
    except KeyboardInterrupt:
        sys.exit(130)


async def smoke(arguments: Sequence[str]) -> int:
    """locust's exit code. Raises MeshStartError and StartupError where the mesh does not come up."""
    options = MeshOptions(engine=EngineName.SIM, rate_mbit=_RATE_MBIT)
    async with LocalMesh(options, lambda line: print(line, flush=True)) as mesh:
        locust = await asyncio.create_subprocess_exec(
            *leashed(sys.executable, "-m", "locust", "-f", str(_LOCUSTFILE)),
            *("--headless", "--only-summary", "--check-counters"),
            *("--host", mesh.http_url, "--grpc", mesh.grpc_address, "--api", "both"),
            *(*_LOAD, *arguments),
            stdin=asyncio.subprocess.DEVNULL,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        try:
            return await locust.wait()
        finally:
            if locust.returncode is None:
                locust.kill()
                await locust.wait()


if __name__ == "__main__":
    main()
