"""Made-up texts: cheap, named, and within the vocabulary."""

from __future__ import annotations

from pdd.engine.sim.vocabulary import sim_vocabulary
from virtual.workloads.passages import NAMES, passage


def test_a_name_gives_the_same_ids_at_any_length() -> None:
    assert passage(12_345, 5000)[:700] == passage(12_345, 700)
    assert [len(passage(7, tokens)) for tokens in (0, 1, 4, 5, 1000, 1004, 2500)] == [0, 1, 4, 5, 1000, 1004, 2500]


def test_names_differ_within_their_first_ids() -> None:
    names = (0, 1, 999, 1000, 1001, 183_165, NAMES // 2, NAMES // 2 + 1, NAMES - 1)
    assert len({passage(name, 4) for name in names}) == len(names)


def test_ids_are_in_the_vocabulary_of_the_sim() -> None:
    ids = passage(NAMES - 1, 3000)
    assert min(ids) >= 0
    assert max(ids) < sim_vocabulary().size
