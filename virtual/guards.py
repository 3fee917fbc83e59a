"""Makes clocks, random sources, sockets and threads raise while a virtual run is on.

Used by `clock.run` and by the fixtures of tests in virtual time. Replaces functions of the standard library and puts them back
on leaving. Only calls made from within the guarded packages raise; other libraries see what they always see. Threads and gRPC's
own channels and servers are refused to everyone.

It can't see a name that a module took for itself (`from time import monotonic`), nor classes written in C, such as `datetime`:
the linter has to.
"""

from __future__ import annotations

import functools
import os
import random
import secrets
import socket
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

import grpc.aio

PACKAGES = ("pdd", "services", "gateway")

Forbid = Callable[[str], NoReturn]  # called with what was done and what to do instead; raises


@dataclass(frozen=True, slots=True)
class _Source:
    """Functions of one module or class that reach outside."""

    owner: Any
    names: Sequence[str]
    instead: str
    for_all: bool = False  # refused to every caller, not only to the guarded packages


_CLOCK = "take now_s as an argument, or asyncio.get_running_loop().time() in a shell"
_RANDOM = "take a random.Random, or a function that draws, as an argument"
_NETWORK = "open channels and servers through the network that is passed in"

_SOURCES = (
    _Source(time, ("time", "monotonic", "perf_counter", "process_time", "thread_time", "clock_gettime"), _CLOCK),
    _Source(
        time, ("time_ns", "monotonic_ns", "perf_counter_ns", "process_time_ns", "thread_time_ns", "clock_gettime_ns"), _CLOCK
    ),
    _Source(time, ("clock_gettime_ns", "localtime", "gmtime", "ctime"), _CLOCK),
    _Source(time, ("sleep",), "await asyncio.sleep"),
    _Source(random, [name for name in random.__all__ if name[0].islower()], _RANDOM),
    _Source(random.SystemRandom, ("random", "getrandbits", "randbytes"), _RANDOM),
    _Source(os, ("urandom",), _RANDOM),
    # Not randbits: numpy takes from it for generators that are given a key, in C code that looks like its caller's.
    _Source(secrets, ("token_bytes", "token_hex", "token_urlsafe", "randbelow", "choice"), _RANDOM),
    _Source(uuid, ("uuid1", "uuid4"), _RANDOM),
    _Source(socket, ("create_connection", "create_server", "getaddrinfo", "gethostbyname"), _NETWORK),
    _Source(socket.socket, ("__init__",), _NETWORK),
    # Its core crashes where it can't start its thread.
    _Source(grpc.aio, ("insecure_channel", "secure_channel", "server", "init_grpc_aio"), _NETWORK, for_all=True),
)


@contextmanager
def guarded(forbid: Forbid, packages: Sequence[str] = PACKAGES) -> Iterator[None]:
    """Call `forbid` for whatever the modules of `packages` take from the machine, until the context is left."""
    with ExitStack() as stack:
        for source in _SOURCES:
            for name in source.names:
                stack.enter_context(_replaced(source.owner, name, _guard(source, name, forbid, packages)))
        stack.enter_context(_replaced(threading.Thread, "start", _no_threads(forbid)))
        yield


def _guard(source: _Source, name: str, forbid: Forbid, packages: Sequence[str]) -> Callable[..., Any]:
    genuine = getattr(source.owner, name)
    what = f"{source.owner.__name__}.{name} in virtual time, called by {{}}: {source.instead}"

    @functools.wraps(genuine)
    def guard(*args: Any, **kwargs: Any) -> Any:
        caller = str(sys._getframe(1).f_globals.get("__name__", ""))
        # A module that was first imported during the run may have kept this function for good.
        if (source.for_all or caller.partition(".")[0] in packages) and vars(source.owner).get(name) is guard:
            forbid(what.format(caller))
        return genuine(*args, **kwargs)

    return guard


def _no_threads(forbid: Forbid) -> Callable[[threading.Thread], None]:
    genuine, owner = threading.Thread.start, threading.get_ident()

    def start(thread: threading.Thread) -> None:
        if threading.get_ident() == owner:
            forbid(f"thread {thread.name!r} started in virtual time: there is one thread only")
        genuine(thread)

    return start


@contextmanager
def _replaced(owner: Any, name: str, replacement: Callable[..., Any]) -> Iterator[None]:
    inherited = name not in vars(owner)
    genuine = getattr(owner, name)
    setattr(owner, name, replacement)
    try:
        yield
    finally:
        if inherited:
            delattr(owner, name)
        else:
            setattr(owner, name, genuine)
