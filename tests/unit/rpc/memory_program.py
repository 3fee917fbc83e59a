"""Takes and frees memory as a transfer does, in several threads; says on stderr how many MiB of it the process still has."""

import os
import sys
from concurrent.futures import ThreadPoolExecutor

from pdd.rpc.memory import keep_freed_memory

MIB = 1 << 20
THREADS = 4


def resident_mib() -> float:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / MIB


def take_and_free(blocks: int) -> None:
    held = [bytes(bytearray(MIB)) for _ in range(blocks)]
    held.clear()


if os.environ["PROGRAM"] == "keeps" and not keep_freed_memory(os.environ):
    sys.exit("the C library took none of it")
before = resident_mib()
for _ in range(THREADS):
    # One thread after the other: with an arena each, every one of them would take memory of its own.
    with ThreadPoolExecutor(1) as thread:
        thread.submit(take_and_free, 64).result()
sys.stderr.write(f"{resident_mib() - before:.0f}\n")
