from __future__ import annotations

import os
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdd.kv.hashing import chain_hashes

IDS = st.lists(st.integers(0, 2**32 - 1), max_size=100)


def test_hashes_are_those_of_the_definition_for_ever() -> None:
    """Instances of different versions must agree: a change of these numbers is a change of protocol."""
    assert chain_hashes(range(35), 16, "tenant") == (13791575742519041562, 14530629057600399523)


def test_hashes_are_equal_in_a_process_with_another_hash_seed() -> None:
    program = "from pdd.kv.hashing import chain_hashes; print(*chain_hashes(range(1000, 1100), 16, 'tenant'))"
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", program]
        output = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
        assert tuple(map(int, output.split())) == chain_hashes(range(1000, 1100), 16, "tenant")


@settings(deadline=None)
@given(IDS, st.integers(1, 20), st.text(max_size=5))
def test_only_full_blocks_have_hashes_and_a_prefix_has_the_first_of_them(ids: list[int], block_tokens: int, salt: str) -> None:
    hashes = chain_hashes(ids, block_tokens, salt)
    assert len(hashes) == len(ids) // block_tokens
    for length in range(len(ids)):
        assert chain_hashes(ids[:length], block_tokens, salt) == hashes[: length // block_tokens]


@settings(deadline=None)
@given(IDS.filter(lambda ids: len(ids) >= 4), st.data())
def test_a_changed_id_changes_its_block_and_all_after_it(ids: list[int], data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(ids) // 4 * 4 - 1))
    changed = [*ids[:at], ids[at] ^ 1, *ids[at + 1 :]]
    before, after = chain_hashes(ids, 4, ""), chain_hashes(changed, 4, "")
    assert [one == other for one, other in zip(before, after, strict=True)] == [block < at // 4 for block in range(len(before))]


def test_the_salt_enters_every_hash() -> None:
    ids = range(64)
    assert not set(chain_hashes(ids, 16, "a")) & set(chain_hashes(ids, 16, "b"))


@pytest.mark.parametrize("wrong", [-1, 2**32])
def test_an_id_that_is_no_u32_is_named_as_such(wrong: int) -> None:
    with pytest.raises(ValueError, match="token ids"):
        chain_hashes([wrong], 1, "")


def test_blocks_of_no_tokens_are_refused() -> None:
    with pytest.raises(ValueError, match="block_tokens"):
        chain_hashes([1], 0, "")
