"""Two runs with one seed are alike, step by step, whatever the heap and the hashes of the interpreter look like."""

import gc
import os
import subprocess
import sys
from pathlib import Path
from random import Random

from tests.unit.virtual.traffic import record

ROOT = Path(__file__).parents[3]


def perturbed() -> list[object]:
    """Objects of many sizes, some of which are let go of again, so that the next ones lie elsewhere."""
    random = Random()
    junk: list[object] = [bytearray(random.randrange(1, 4000)) for _ in range(20_000)]
    random.shuffle(junk)
    del junk[::3]
    junk.append([junk])
    gc.collect()
    return junk


def test_a_run_is_repeated_step_by_step() -> None:
    first = record()
    assert len(first) > 1000
    assert record() == first


def test_a_run_is_repeated_with_another_heap() -> None:
    first = record()
    for _ in range(3):
        junk = perturbed()
        assert record() == first
        assert junk


def test_a_run_is_repeated_in_another_process() -> None:
    def digest(hash_seed: str) -> bytes:
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        program = [sys.executable, "-m", "tests.unit.virtual.traffic"]
        return subprocess.run(program, cwd=ROOT, env=environment, capture_output=True, check=True).stdout

    assert digest("1") == digest("2")


def test_another_seed_gives_another_run() -> None:
    assert record(seed=1) != record(seed=2)


def test_ties_drawn_from_a_seed_are_repeated_too() -> None:
    assert record(ties=1) == record(ties=1) != record(ties=2)
