import asyncio
import gc
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from virtual.clock import run
from virtual.ordered import TaskGroup, as_completed, wait

COUNT = 50


Main = Callable[[], Coroutine[Any, Any, Any]]


def run_really(main: Main) -> Any:
    return asyncio.run(main())


@pytest.fixture(params=[run_really, run], ids=["real", "virtual"])
def runner(request: pytest.FixtureRequest) -> Any:
    return request.param


async def cancelled_order(group: asyncio.TaskGroup) -> list[int]:
    log: list[int] = []

    async def linger(number: int) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            log.append(number)

    async def fail() -> None:
        raise KeyError

    async def fill() -> None:
        async with group:
            for number in range(COUNT):
                group.create_task(linger(number))
            await asyncio.sleep(0)
            group.create_task(fail())

    with pytest.raises(ExceptionGroup):
        await fill()
    return log


def test_a_group_cancels_its_tasks_in_the_order_of_creation(runner: Any) -> None:
    async def main() -> list[int]:
        return await cancelled_order(TaskGroup())

    assert runner(main) == list(range(COUNT))


def test_a_group_waits_for_its_tasks(runner: Any) -> None:
    async def main() -> None:
        async with TaskGroup() as group:
            tasks = [group.create_task(asyncio.sleep(0)) for _ in range(3)]
        assert all(task.done() for task in tasks)

    runner(main)


def test_wait_gives_both_lists_in_the_order_given(runner: Any) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        futures = [loop.create_future() for _ in range(COUNT)]
        for future in futures[::2]:
            future.set_result(None)
        done, pending = await wait(futures, timeout=0.01)
        assert done == futures[::2]
        assert pending == futures[1::2]

    runner(main)


def test_futures_that_are_done_at_once_come_in_the_order_given(runner: Any) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        futures = [loop.create_future() for _ in range(COUNT)]
        for future in reversed(futures):
            future.set_result(None)
        assert [future async for future in as_completed(futures)] == futures

    runner(main)


def test_futures_come_as_they_are_done(runner: Any) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        futures = [loop.create_future() for _ in range(3)]
        for place, delay in enumerate((0.03, 0.01, 0.02)):
            loop.call_later(delay, futures[place].set_result, place)
        assert [future.result() async for future in as_completed(futures)] == [1, 2, 0]

    runner(main)


def stock_orders() -> list[list[int]]:
    """What the stock functions that keep tasks in sets do, in virtual time."""

    async def main() -> list[list[int]]:
        async def say(number: int) -> int:
            await asyncio.sleep(1)
            return number

        def tasks() -> list[asyncio.Task[int]]:
            return [asyncio.create_task(say(number)) for number in range(COUNT)]

        done, _ = await asyncio.wait(tasks())
        completed = [await one for one in asyncio.as_completed(tasks())]
        return [await cancelled_order(asyncio.TaskGroup()), [task.result() for task in done], completed]

    return run(main)


def test_the_stock_ones_are_alike_in_every_virtual_run() -> None:
    first = stock_orders()
    junk = [[bytearray(size)] for size in range(1, 5000)]
    gc.collect()
    assert stock_orders() == first
    assert len(junk) == 4999
