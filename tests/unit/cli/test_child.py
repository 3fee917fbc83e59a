import asyncio
import os
import signal
from pathlib import Path

from pdd.cli.child import Child
from pdd.cli.plan import ProcessSpec
from pdd.process import describe_exit
from tests.eventually import eventually


async def start(program: str, log_dir: Path) -> Child:
    spec = ProcessSpec("child", "tests.unit.cli.program", {"PROGRAM": program})
    return await Child.start(spec, log_dir, {**os.environ, "PDD_INSTANCE_ID": "of-the-parent"})


async def said(child: Child, text: str) -> None:
    """Wait until the child's log contains `text`."""
    await eventually(lambda: text in child.tail())


async def test_output_and_exit_code_of_a_child_that_fails_are_kept(tmp_path: Path) -> None:
    child = await start("fail", tmp_path)
    assert await child.wait() == 3
    assert child.tail(lines=1) == "last line"
    assert child.tail() == "first line\nlast line"
    assert (tmp_path / "child.log").read_text() == "first line\nlast line\n"


async def test_what_another_process_has_left_in_the_log_is_not_a_childs(tmp_path: Path) -> None:
    (tmp_path / "child.log").write_text("child: the port is in use\n")
    child = await start("fail", tmp_path)
    assert await child.wait() == 3
    assert child.tail() == "first line\nlast line"


async def test_stop_ends_a_child(tmp_path: Path) -> None:
    child = await start("wait", tmp_path)
    await said(child, "waiting")
    assert child.returncode is None
    await child.stop()
    assert child.returncode == -signal.SIGTERM


async def test_stop_kills_a_child_that_does_not_listen(tmp_path: Path) -> None:
    child = await start("stubborn", tmp_path)
    await said(child, "waiting")
    await child.stop(grace_s=0.1)
    assert child.returncode == -signal.SIGKILL


async def test_a_cancelled_stop_still_ends_the_child(tmp_path: Path) -> None:
    child = await start("stubborn", tmp_path)
    await said(child, "waiting")
    stopping = asyncio.create_task(child.stop(grace_s=60))
    await asyncio.sleep(0)
    stopping.cancel()
    await asyncio.gather(stopping, return_exceptions=True)
    assert await child.wait() == -signal.SIGKILL


async def test_stop_of_an_ended_child_does_nothing(tmp_path: Path) -> None:
    child = await start("fail", tmp_path)
    await child.wait()
    await child.stop()
    child.signal(signal.SIGKILL)
    assert child.returncode == 3


async def test_a_child_gets_its_own_environment(tmp_path: Path) -> None:
    child = await start("environment", tmp_path)
    await child.wait()
    lines = child.log_path.read_text().splitlines()
    assert "PROGRAM=environment" in lines
    assert not [line for line in lines if line.startswith("PDD_INSTANCE_ID=")]


def test_exit_codes_in_words() -> None:
    assert describe_exit(1) == "ended with exit code 1"
    assert describe_exit(-9) == "was killed by SIGKILL"
