"""An event loop on a virtual clock: where all wait, time moves to the next timer at once.

Called by tests and benchmarks through `run`, or made by pytest-asyncio as the loop of a test. Owns the timers and the callbacks
that are ready. It has no selector: whatever would wait for a thread or a file descriptor raises VirtualForbidden.

A run is reproducible: timers that are due at once run in the order in which they were made (or in one drawn from a seed, to try
other orders), tasks have numbers for hashes, so that sets of them iterate alike in every run, and garbage is collected after a
number of steps, not when the heap happens to be full.
"""

from __future__ import annotations

import asyncio
import gc
import heapq
import math
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from contextvars import Context
from random import Random
from typing import Any, NoReturn, TypeAlias, TypeVar, TypeVarTuple

from virtual.errors import VirtualDeadlock, VirtualForbidden, VirtualLivelock, VirtualStuck, VirtualTimeLimit
from virtual.guards import guarded
from virtual.tasks import OrderedWeakSet, VirtualTask, label, place

MAX_STEPS_AT_ONCE = 1_000_000  # in one instant
_PRUNE_AT = 100  # cancelled timers that are left in the heap at least
_COLLECT_STEPS = 200_000  # between two collections of garbage

Trace: TypeAlias = Callable[[float, str], None]  # the time in seconds, and what runs: a task's name or a callback's

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class VirtualLoop(asyncio.BaseEventLoop):
    _stopping: bool  # the base's

    def __init__(
        self,
        *,
        seed: int | None = None,
        limit_s: float | None = None,
        trace: Trace | None = None,
        max_steps_at_once: int = MAX_STEPS_AT_ONCE,
    ) -> None:
        """Time starts at 0. With a `seed`, timers due at the same time run in an order drawn from it; without, in that of making.

        The run raises VirtualTimeLimit rather than pass `limit_s`.
        """
        super().__init__()
        self.forbidden: list[VirtualForbidden] = []  # every violation, those included that somebody caught
        self.steps = 0  # callbacks that have run
        self._now_s = 0.0
        self._limit_s = limit_s
        self._trace = trace
        self._max_steps_at_once = max_steps_at_once
        self._instant_began = 0  # in steps
        self._due: deque[asyncio.Handle] = deque()
        self._timers: list[tuple[float, float, int, asyncio.TimerHandle]] = []  # when, tie, number: equal times never swap
        self._made_timers = 0
        self._cancelled_timers = 0
        self._draw_tie = Random(seed).random if seed is not None else _no_tie
        self._made_tasks = 0
        self._collect_at: int | None = None
        self._owner = threading.get_ident()
        self._asyncgens = OrderedWeakSet()  # the base's: it closes them in this order

    def time(self) -> float:
        return self._now_s

    def call_soon(self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._due.append(handle)
        return handle

    def call_soon_threadsafe(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        if threading.get_ident() != self._owner:
            self.forbid("call_soon_threadsafe from another thread: in virtual time there is one thread only")
        return self.call_soon(callback, *args, context=context)

    def call_later(
        self, delay: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now_s + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        self._made_timers = number = self._made_timers + 1
        heapq.heappush(self._timers, (when, self._draw_tie(), number, timer))
        return timer

    def forbid(self, what: str) -> NoReturn:
        error = VirtualForbidden(what)
        self.forbidden.append(error)
        raise error

    def create_task(
        self, coro: Generator[Any, None, T] | Coroutine[Any, Any, T], *, name: object = None, context: Context | None = None
    ) -> VirtualTask[T]:
        self._made_tasks += 1
        return VirtualTask(coro, loop=self, number=self._made_tasks, name=name, context=context)

    def unfinished(self) -> list[asyncio.Task[Any]]:
        """In the order in which they were started."""
        return sorted(asyncio.all_tasks(self), key=hash)

    @contextmanager
    def collecting_by_steps(self) -> Iterator[None]:
        """Collect garbage after a number of steps: what it finalises can start tasks, and that must not depend on the heap."""
        enabled = gc.isenabled()
        gc.disable()
        gc.freeze()  # what was there before is no business of this run, and not worth a look at each collection
        self._collect_at = self.steps + _COLLECT_STEPS
        try:
            yield
        finally:
            self._collect_at = None
            gc.unfreeze()
            if enabled:
                gc.enable()

    # ── what the base calls ──

    def _timer_handle_cancelled(self, _timer: asyncio.TimerHandle) -> None:
        self._cancelled_timers += 1

    def _run_once(self) -> None:
        if self._cancelled_timers > _PRUNE_AT and 2 * self._cancelled_timers > len(self._timers):
            self._prune()
        due, timers = self._due, self._timers
        if not due and not self._stopping:
            self._advance()
        while timers and timers[0][0] <= self._now_s:
            due.append(heapq.heappop(timers)[3])
        # What these add waits for the next round, behind timers that are due by then, as in any event loop.
        for _ in range(len(due)):
            handle = due.popleft()
            if not handle._cancelled:
                self.steps += 1
                if self._trace is not None:
                    self._trace(self._now_s, label(handle))
                handle._run()
        if self.steps - self._instant_began > self._max_steps_at_once:
            raise VirtualLivelock(self._report(f"{self._max_steps_at_once} steps at once and no end of it"))
        if self._collect_at is not None and self.steps >= self._collect_at:
            self._collect_at = self.steps + _COLLECT_STEPS
            gc.collect()

    def _advance(self) -> None:
        """Move to the next timer."""
        timers = self._timers
        while timers and timers[0][3]._cancelled:
            heapq.heappop(timers)
            self._cancelled_timers -= 1
        if not timers or timers[0][0] == math.inf:
            raise VirtualDeadlock(self._report("nothing is scheduled"))
        when = timers[0][0]
        if when <= self._now_s:
            return
        if self._limit_s is not None and when > self._limit_s:
            raise VirtualTimeLimit(self._report(f"the limit of {self._limit_s:g} s is reached"))
        self._now_s = when
        self._instant_began = self.steps

    def _prune(self) -> None:
        self._timers[:] = [entry for entry in self._timers if not entry[3]._cancelled]
        heapq.heapify(self._timers)
        self._cancelled_timers = 0

    def _report(self, what: str) -> str:
        tasks = self.unfinished()
        lines = [f"  {task.get_name()}: {place(task)}" for task in tasks]
        return "\n".join([f"{what} at {self._now_s:.6f} s; {len(tasks)} tasks:", *lines])


def run(
    main: Callable[[*Ts], Coroutine[Any, Any, T]],
    *args: *Ts,
    seed: int | None = None,
    limit_s: float | None = None,
    trace: Trace | None = None,
) -> T:
    """Run `main(*args)` in virtual time, guarded, and return its result; tasks that it leaves behind are cancelled in order.

    `seed`, `limit_s` and `trace` are the loop's. Raises what `main` raises, VirtualStuck, and VirtualForbidden also where someone
    has caught it: a run that reached outside proves nothing.
    """
    loop = VirtualLoop(seed=seed, limit_s=limit_s, trace=trace)
    try:
        with guarded(loop.forbid), loop.collecting_by_steps():
            try:
                result = loop.run_until_complete(main(*args))
            except BaseException as error:
                _add_notes(error, loop.forbidden)
                _wind_up_after(error, loop)
                raise
            _wind_up(loop)
    finally:
        loop.close()
    if loop.forbidden:
        raise loop.forbidden[0]
    return result


def _wind_up(loop: VirtualLoop) -> None:
    """Cancel what is left, oldest first, and wait for it."""
    while left := loop.unfinished():
        for task in left:
            task.cancel()
        loop.run_until_complete(asyncio.wait(left))
        for task in left:
            if not task.cancelled() and (error := task.exception()) is not None:
                loop.call_exception_handler({"message": "a task failed while it was cancelled", "exception": error, "task": task})
    loop.run_until_complete(loop.shutdown_asyncgens())


def _wind_up_after(error: BaseException, loop: VirtualLoop) -> None:
    try:
        _wind_up(loop)
    except VirtualStuck as stuck:
        error.add_note(f"and then, while cancelling what was left: {stuck}")


def _add_notes(error: BaseException, forbidden: list[VirtualForbidden]) -> None:
    for violation in forbidden:
        if violation is not error:
            error.add_note(f"before that: {violation!r}")


def _no_tie() -> float:
    return 0.0


_THREADS = "there is one thread only"
_FILES = "there are no files or sockets to wait for; open channels and servers through the virtual network"
_SIGNALS = "signals come from outside"

_FORBIDDEN_METHODS: dict[str, tuple[str, ...]] = {
    _THREADS: ("run_in_executor",),
    _SIGNALS: ("add_signal_handler", "remove_signal_handler"),
    _FILES: (
        *("add_reader", "remove_reader", "add_writer", "remove_writer", "connect_read_pipe", "connect_write_pipe", "sendfile"),
        *("create_connection", "create_server", "create_unix_connection", "create_unix_server", "create_datagram_endpoint"),
        *("connect_accepted_socket", "start_tls", "getaddrinfo", "getnameinfo", "subprocess_exec", "subprocess_shell"),
        *("sock_accept", "sock_connect", "sock_recv", "sock_recv_into", "sock_recvfrom", "sock_recvfrom_into"),
        *("sock_sendall", "sock_sendfile", "sock_sendto"),
    ),
}


def _forbidden_method(name: str, why: str) -> Callable[..., NoReturn]:
    def method(self: VirtualLoop, *_args: object, **_kwargs: object) -> NoReturn:
        self.forbid(f"{name} in virtual time: {why}")

    return method


for _why, _names in _FORBIDDEN_METHODS.items():
    for _name in _names:
        setattr(VirtualLoop, _name, _forbidden_method(_name, _why))
