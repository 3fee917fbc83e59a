import asyncio
import os
import random
import secrets
import socket
import threading
import time
import uuid
from typing import Any, NoReturn

import grpc.aio
import pytest

from virtual.errors import VirtualForbidden
from virtual.guards import guarded

MODULES = {module.__name__: module for module in (os, random, secrets, socket, time, uuid)}


def forbid(what: str) -> NoReturn:
    raise VirtualForbidden(what)


def call_from(module: str, expression: str) -> Any:
    """Evaluate an expression as a line of `module` would."""
    return eval(expression, {"__name__": module, **MODULES})


READINGS = [
    *("time.time()", "time.monotonic()", "time.perf_counter()", "time.time_ns()", "time.sleep(0)", "time.gmtime()"),
    *("random.random()", "random.randint(1, 2)", "random.shuffle([1])", "random.choice([1])"),
    *("random.SystemRandom().getrandbits(8)", "random.SystemRandom().random()"),
    *("os.urandom(1)", "secrets.token_hex()", "secrets.randbelow(2)", "uuid.uuid4()"),
    *("socket.getaddrinfo('127.0.0.1', 1)", "socket.socket()"),
]


@pytest.mark.parametrize("reading", READINGS)
@pytest.mark.parametrize("module", ["pdd.sampling", "services.shell", "gateway"])
def test_our_modules_may_not_read_the_machine(module: str, reading: str) -> None:
    with guarded(forbid), pytest.raises(VirtualForbidden, match=f"called by {module}"):
        call_from(module, reading)


@pytest.mark.parametrize("reading", READINGS)
def test_others_may(reading: str) -> None:
    with guarded(forbid):
        made = call_from("gatewayish.library", reading)
    if isinstance(made, socket.socket):
        made.close()


@pytest.mark.parametrize("reading", READINGS)
def test_all_is_as_before_afterwards(reading: str) -> None:
    with guarded(forbid):
        pass
    made = call_from("pdd.sampling", reading)
    if isinstance(made, socket.socket):
        made.close()


def test_a_random_source_of_ones_own_is_allowed() -> None:
    with guarded(forbid):
        assert call_from("pdd.sampling", "random.Random(1).random()") == random.Random(1).random()


def test_a_guard_that_somebody_kept_lets_go_afterwards() -> None:
    with guarded(forbid):
        kept = time.monotonic
    assert eval("kept()", {"__name__": "pdd.sampling", "kept": kept}) > 0


def test_a_violation_says_what_to_do_instead() -> None:
    with guarded(forbid), pytest.raises(VirtualForbidden, match="get_running_loop"):
        call_from("pdd.sampling", "time.time()")


def test_nobody_may_start_a_thread() -> None:
    with guarded(forbid), pytest.raises(VirtualForbidden, match="one thread only"):
        threading.Thread(target=print).start()
    thread = threading.Thread(target=time.time)
    thread.start()
    thread.join()


@pytest.mark.parametrize("make", [lambda: grpc.aio.insecure_channel("127.0.0.1:1"), lambda: grpc.aio.server()])
def test_nobody_may_use_grpc_itself(make: Any) -> None:
    with guarded(forbid), pytest.raises(VirtualForbidden, match="network that is passed in"):
        make()


def test_guards_can_be_entered_again() -> None:
    with guarded(forbid), guarded(forbid):
        pass
    assert isinstance(asyncio.run(asyncio.sleep(0, time.time())), float)
