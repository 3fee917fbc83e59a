"""Runs a service process: memory, uvloop, signals, logs, exit code.

Called by each service's `__main__` with a coroutine function that runs until the event it is given is set. Owns the event loop
and the signal handlers; never what the service does.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator
from typing import NoReturn, TypeVar

import pydantic
import uvloop

from pdd.catalog.base import IncompatibleInstance, RegistryUnavailable
from pdd.rpc.errors import StartupError
from pdd.rpc.memory import keep_freed_memory
from pdd.telemetry import configure_logging

EXIT_FAILED = 1
EXIT_USAGE = 2  # the configuration is wrong

_KNOWN = (StartupError, IncompatibleInstance, RegistryUnavailable)
_BIND_ERRNOS = frozenset({errno.EADDRINUSE, errno.EADDRNOTAVAIL, errno.EACCES})

SettingsT = TypeVar("SettingsT")


def run_service(main: Callable[[asyncio.Event], Awaitable[None]], *, log_level: str, service: str = "pdd") -> None:
    """Run `main(stop)` to its end; SIGTERM and SIGINT set `stop`, a second one cancels `main`.

    An error that a person can act on ends the process with one line on stderr and exit code 1 or 2; any other with its traceback.
    """
    keep_freed_memory(os.environ)
    # What was imported stays: a full collection, which comes every few seconds under load, need not walk through it.
    gc.collect()
    gc.freeze()
    try:
        configure_logging(log_level, service)
    except ValueError as error:
        _exit(service, [str(error)], EXIT_USAGE)
    try:
        uvloop.run(_until_stopped(main))
    except asyncio.CancelledError:
        _exit(service, ["cancelled by a second signal"], EXIT_FAILED)
    except Exception as error:
        known = list(_known_errors(error))
        if not known:
            raise
        _exit(service, known, EXIT_FAILED)


def read_settings(settings: Callable[[], SettingsT], service: str = "pdd") -> SettingsT:
    """Call a pydantic-settings class; where the environment is wrong, exit with code 2 and a line a field."""
    try:
        return settings()
    except pydantic.ValidationError as error:
        prefix = getattr(settings, "model_config", {}).get("env_prefix", "")
        _exit(service, [_setting_error(item["loc"], item["msg"], prefix) for item in error.errors()], EXIT_USAGE)


async def _until_stopped(main: Callable[[asyncio.Event], Awaitable[None]]) -> None:
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    assert task is not None
    stop = asyncio.Event()

    def on_signal() -> None:
        if stop.is_set():
            task.cancel()
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    try:
        await main(stop)
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


def _setting_error(location: tuple[int | str, ...], message: str, prefix: str) -> str:
    name, message = ".".join(str(part) for part in location).upper(), message.removeprefix("Value error, ")
    if not name:
        return message  # of several settings together: it names them
    return f"{name if name.startswith(prefix) else prefix + name}: {message}"


def _known_errors(error: BaseException) -> Iterator[str]:
    """The lines to show where every error in a (group of) error is known; nothing otherwise."""
    leaves = list(_leaves(error))
    if all(_is_known(leaf) for leaf in leaves):
        yield from (str(leaf) for leaf in leaves)


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error


def _is_known(error: BaseException) -> bool:
    return isinstance(error, _KNOWN) or (isinstance(error, OSError) and error.errno in _BIND_ERRNOS)


def _exit(service: str, lines: list[str], code: int) -> NoReturn:
    for line in dict.fromkeys(lines):
        sys.stderr.write(f"{service}: {line}\n")
    raise SystemExit(code)
