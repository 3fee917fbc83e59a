"""Starts programs that die with their parent, even where the parent is killed with SIGKILL.

Used by whoever starts processes: the command line for a mesh's, `catalog.embedded` for its Valkey. `leashed` gives the arguments;
run as a script, this file sets the leash and replaces itself by the program, whose process id it thereby has. Linux keeps the
promise; elsewhere the program runs without it, and only an orderly stop ends it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1  # linux/prctl.h; survives execve


def leashed(*program: str) -> tuple[str, ...]:
    """The arguments that start `program` as a child of this process and on its leash.

    The leash is held by the thread that starts the process; start it from one that lives as long as the program should.
    """
    # Isolated and without site: nothing of the surroundings can break it, and it starts in some 10 ms.
    return (sys.executable, "-I", "-S", __file__, str(os.getpid()), *program)


def _become(parent: int, program: list[str]) -> None:
    if sys.platform == "linux":
        # SIGKILL: whoever would have waited for an orderly stop is gone.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if os.getppid() != parent:
        sys.exit("the parent died while this process was being started")
    os.execvp(program[0], program)


if __name__ == "__main__":
    _become(int(sys.argv[1]), sys.argv[2:])
