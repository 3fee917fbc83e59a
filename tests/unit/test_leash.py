import asyncio
import os
import sys
from pathlib import Path

import pytest

from pdd.leash import leashed
from tests.eventually import eventually

PARENT = """
import subprocess, sys, time
from pdd.leash import leashed
child = subprocess.Popen(leashed("sleep", "600"))
print(child.pid, flush=True)
time.sleep(600)
"""


def is_running(pid: int) -> bool:
    """Neither gone nor a zombie that nobody has waited for yet."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


@pytest.mark.skipif(sys.platform != "linux", reason="the leash holds on Linux only")
async def test_a_program_on_the_leash_dies_with_a_parent_that_is_killed() -> None:
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", PARENT, stdout=asyncio.subprocess.PIPE)
    assert parent.stdout is not None
    pid = int(await parent.stdout.readline())
    assert is_running(pid)
    parent.kill()
    await parent.wait()
    await eventually(lambda: not is_running(pid))


async def test_the_program_keeps_the_process_id_and_the_arguments() -> None:
    child = await asyncio.create_subprocess_exec(
        *leashed("sh", "-c", 'echo $$ "$@"', "sh", "one", "two words"), stdout=asyncio.subprocess.PIPE
    )
    output, _ = await child.communicate()
    assert output.decode() == f"{child.pid} one two words\n"


async def test_a_program_whose_parent_is_gone_does_not_start() -> None:
    arguments = list(leashed("true"))
    arguments[arguments.index(str(os.getpid()))] = "1"
    child = await asyncio.create_subprocess_exec(*arguments, stderr=asyncio.subprocess.PIPE)
    _, errors = await child.communicate()
    assert child.returncode == 1
    assert b"parent" in errors
