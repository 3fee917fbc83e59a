import asyncio
import gc
import math
import signal
import socket
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from virtual.clock import VirtualLoop, run
from virtual.errors import VirtualDeadlock, VirtualForbidden, VirtualLivelock, VirtualTimeLimit


def now_s() -> float:
    return asyncio.get_running_loop().time()


async def order_of_equal_timers(count: int) -> list[int]:
    loop, fired = asyncio.get_running_loop(), list[int]()
    for number in range(count):
        loop.call_at(1.0, fired.append, number)
    await asyncio.sleep(2)
    return fired


def test_time_starts_at_zero_and_passes_only_in_waits() -> None:
    async def main() -> tuple[float, float]:
        before_s = now_s()
        await asyncio.sleep(3600)
        return before_s, now_s()

    assert run(main) == (0, 3600)


def test_arguments_are_passed_on() -> None:
    async def main(one: int, other: str) -> str:
        return other * one

    assert run(main, 2, "ab") == "abab"


def test_timers_due_at_once_run_in_the_order_of_making() -> None:
    assert run(order_of_equal_timers, 100) == list(range(100))


def test_a_seed_draws_another_order_and_always_the_same() -> None:
    drawn = [run(order_of_equal_timers, 100, seed=seed) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert sorted(drawn[0]) == list(range(100)) != drawn[0]


def test_cancelled_timers_do_not_move_time() -> None:
    async def main() -> float:
        loop = asyncio.get_running_loop()
        for delay in range(1, 1000):
            loop.call_later(delay, print).cancel()
        await asyncio.sleep(0.5)
        return now_s()

    assert run(main) == 0.5


def test_a_timer_that_is_due_is_not_starved_by_ready_tasks() -> None:
    async def main() -> bool:
        fired = asyncio.Event()
        asyncio.get_running_loop().call_later(0, fired.set)
        for _ in range(10):
            await asyncio.sleep(0)
        return fired.is_set()

    assert run(main)


def test_timeouts_work() -> None:
    async def main() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(10):
                await asyncio.Event().wait()
        return now_s()

    assert run(main) == 10


def test_a_run_in_which_nothing_is_scheduled_names_its_tasks_and_where_they_wait() -> None:
    async def wait_for_ever() -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        await asyncio.sleep(5)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(wait_for_ever(), name="patient")

    with pytest.raises(VirtualDeadlock, match=r"nothing is scheduled at 5\.0+ s; 2 tasks") as error:
        run(main)
    assert "patient: " in str(error.value)
    assert "wait_for_ever > Event.wait at " in str(error.value)


def test_a_wait_without_end_is_a_deadlock() -> None:
    with pytest.raises(VirtualDeadlock):
        run(asyncio.sleep, math.inf)


def test_a_task_that_never_waits_for_time_is_found() -> None:
    async def spin() -> None:
        while True:  # noqa: ASYNC110
            await asyncio.sleep(0)

    loop = VirtualLoop(max_steps_at_once=1000)
    with pytest.raises(VirtualLivelock, match="spin"):
        loop.run_until_complete(spin())
    for task in loop.unfinished():
        task.cancel()
    loop.close()


def test_many_steps_over_time_are_no_livelock() -> None:
    async def main() -> None:
        for _ in range(200):
            await asyncio.sleep(0.001)

    loop = VirtualLoop(max_steps_at_once=100)
    loop.run_until_complete(main())
    loop.close()


def test_a_run_does_not_pass_its_limit() -> None:
    with pytest.raises(VirtualTimeLimit, match="limit of 10 s"):
        run(asyncio.sleep, 11.0, limit_s=10)
    run(asyncio.sleep, 10.0, limit_s=10)


async def use_a_thread() -> None:
    await asyncio.to_thread(print)


async def start_a_thread() -> None:
    threading.Thread(target=print).start()


async def watch_a_socket() -> None:
    one, other = socket.socketpair()
    with one, other:
        asyncio.get_running_loop().add_reader(one, print)


async def connect() -> None:
    await asyncio.open_connection("127.0.0.1", 1)


async def look_up() -> None:
    await asyncio.get_running_loop().getaddrinfo("localhost", 1)


async def start_a_process() -> None:
    await asyncio.create_subprocess_exec("true")


async def handle_a_signal() -> None:
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, print)


OUTSIDE = [use_a_thread, start_a_thread, watch_a_socket, connect, look_up, start_a_process, handle_a_signal]


@pytest.mark.parametrize("reach_out", OUTSIDE)
def test_what_reaches_outside_is_forbidden(reach_out: Callable[[], Any]) -> None:
    with pytest.raises(VirtualForbidden):
        run(reach_out)


def test_another_thread_may_not_call_in() -> None:
    caught: list[Exception] = []
    ready, done = threading.Event(), threading.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    def call_in() -> None:
        ready.wait()
        try:
            loops[0].call_soon_threadsafe(print)
        except VirtualForbidden as error:
            caught.append(error)
        done.set()

    async def main() -> None:
        loops.append(asyncio.get_running_loop())
        ready.set()
        done.wait()

    thread = threading.Thread(target=call_in)
    thread.start()
    with pytest.raises(VirtualForbidden, match="another thread"):
        run(main)
    thread.join()
    assert len(caught) == 1


def test_a_violation_that_somebody_caught_fails_the_run() -> None:
    async def main() -> None:
        with pytest.raises(VirtualForbidden):
            await use_a_thread()

    with pytest.raises(VirtualForbidden, match="run_in_executor"):
        run(main)


def test_a_failure_tells_of_the_violation_before_it() -> None:
    async def main() -> None:
        try:
            await use_a_thread()
        except RuntimeError:
            raise KeyError("something else") from None

    with pytest.raises(KeyError) as error:
        run(main)
    assert "run_in_executor" in "".join(error.value.__notes__)


def test_tasks_that_are_left_are_cancelled_oldest_first_and_waited_for() -> None:
    log: list[str] = []

    async def linger(name: str) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            log.append(f"{name} cancelled")
            await asyncio.sleep(1)
            log.append(f"{name} gone")

    kept: list[asyncio.Task[None]] = []

    async def main() -> None:
        kept.extend(asyncio.create_task(linger(name)) for name in "abc")
        await asyncio.sleep(1)

    run(main)
    assert log == [*("a cancelled", "b cancelled", "c cancelled"), *("a gone", "b gone", "c gone")]


def test_generators_that_are_left_are_closed_in_the_order_of_their_start() -> None:
    log: list[int] = []

    async def generate(number: int) -> AsyncIterator[int]:
        try:
            yield number
        finally:
            log.append(number)

    kept: list[AsyncIterator[int]] = []

    async def main() -> None:
        for number in range(20):
            kept.append(generate(number))
            await anext(kept[-1])

    run(main)
    assert log == list(range(20))


def test_garbage_is_not_collected_by_chance_during_a_run() -> None:
    async def main() -> bool:
        return gc.isenabled()

    assert gc.isenabled()
    assert not run(main)
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0


def test_a_trace_names_what_runs_and_when() -> None:
    async def main() -> None:
        await asyncio.create_task(asyncio.sleep(1), name="sleeper")

    trace: list[tuple[float, str]] = []
    run(main, trace=lambda at_s, name: trace.append((at_s, name)))
    assert (0.0, "sleeper") in trace
    assert (1.0, "sleeper") in trace
    assert trace[0] == (0.0, "Task-1")
