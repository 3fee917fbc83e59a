"""What every command prints with, and how a command ends: by itself, by a signal, or with one line on stderr and exit code 1.

Called by the command modules only. rich decides for itself whether it may colour (terminal, NO_COLOR); status lines stay plain.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import NoReturn, TypeVar

import typer
import uvloop
from rich.console import Console

from pdd.model.manifest import ModelFilesError
from pdd.rpc.errors import StartupError

ResultT = TypeVar("ResultT")

EXIT_INTERRUPTED = 130  # as shells have it for Ctrl-C

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class CommandError(Exception):
    """A command can't do what was asked; the text is for a person and says what to do."""


def plain_console(stderr: bool = False) -> Console:
    """Prints text as it stands: no markup, no wrapping, no colours of its own."""
    return Console(stderr=stderr, highlight=False, markup=False, emoji=False, soft_wrap=True)


def run(command: Coroutine[object, object, ResultT]) -> ResultT:
    """Run a command's coroutine; an error that a person can act on ends the program with its text."""
    try:
        return uvloop.run(command)
    except (CommandError, StartupError, ModelFilesError) as error:
        fail(str(error))


def fail(message: str) -> NoReturn:
    plain_console(stderr=True).print(f"pdd: {message}")
    raise typer.Exit(1)


@contextmanager
def ended_by_signal(on_signal: Callable[[], None]) -> Iterator[None]:
    """The first SIGINT, SIGTERM or SIGHUP calls `on_signal` and cancels the body, which then counts as done.

    From the second on they do what they always do, so that a stop that takes too long can be cut short.
    """
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    received: list[signal.Signals] = []

    def first(number: signal.Signals) -> None:
        received.append(number)
        release()
        on_signal()
        task.cancel()

    def release() -> None:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)

    for number in _SIGNALS:
        loop.add_signal_handler(number, first, number)
    try:
        yield
    except asyncio.CancelledError:
        if not received:
            raise
        task.uncancel()
    finally:
        release()
