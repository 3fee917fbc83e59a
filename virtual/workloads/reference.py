"""What prefix caches would have hit: the prompts of a run through two LRUs, without a mesh.

Called with every prompt as it is asked, and with its answer when that is there. One cache stands for all prefills and one for all
mains, each with the capacity of all its role's instances: what the mesh hits less is the price of spreading requests over
instances, of timing, and of faults. Like the mesh's caches they are prefix-closed: a prefix is touched from its last block to its
first, so that no block is older than what follows it, and what goes first is always a leaf.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from pdd.kv.hashing import chain_hashes
from virtual.workloads.base import Ids


class LruReference:
    """Names of blocks, least recently used first to go. `capacity_blocks` None is without bound."""

    def __init__(self, capacity_blocks: int | None = None) -> None:
        self._capacity_blocks = capacity_blocks
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._blocks)

    def __contains__(self, name: int) -> bool:
        return name in self._blocks

    def match(self, hashes: Sequence[int]) -> int:
        """How many leading blocks are there. By bisection, since a block is there only with all before it."""
        return bisect_left(hashes, True, key=lambda name: name not in self._blocks)

    def keep(self, hashes: Sequence[int]) -> None:
        """Take the blocks in, or touch them; of more than there is room for, the leading ones."""
        for name in reversed(hashes[: self._capacity_blocks]):
            self._blocks[name] = None
            self._blocks.move_to_end(name)
        if self._capacity_blocks is not None:
            while len(self._blocks) > self._capacity_blocks:
                self._blocks.popitem(last=False)


@dataclass(frozen=True, slots=True)
class Hits:
    """Of one prompt, in tokens."""

    prompt: int
    prefill: int
    main: int

    @property
    def rate(self) -> float:
        """Prefill's: what needs no computing."""
        return self.prefill / self.prompt


@dataclass(slots=True)
class HitTally:
    """Sums over many prompts."""

    prompt: int = 0
    prefill: int = 0
    main: int = 0

    def add(self, hits: Hits) -> None:
        self.prompt += hits.prompt
        self.prefill += hits.prefill
        self.main += hits.main

    @property
    def prefill_rate(self) -> float:
        return self.prefill / self.prompt if self.prompt else 0.0

    @property
    def main_rate(self) -> float:
        return self.main / self.prompt if self.prompt else 0.0


class Reference:
    """Prefill keeps prompts; main keeps prompts and, where `keeps_output`, answers. Capacities in blocks, None without bound."""

    def __init__(
        self,
        block_tokens: int,
        prefill_blocks: int | None = None,
        main_blocks: int | None = None,
        *,
        keeps_output: bool = True,
    ) -> None:
        self.tally = HitTally()
        self._block_tokens = block_tokens
        self._prefill = LruReference(prefill_blocks)
        self._main = LruReference(main_blocks)
        self._keeps_output = keeps_output

    def asked(self, prompt: Ids) -> Hits:
        """What hits of the prompt, which is cached from now on.

        Prefill's hit leaves it at least the last token to compute, and in whole blocks; main's is all full blocks that it has.
        """
        hashes = chain_hashes(prompt, self._block_tokens, "")
        prefill = min(self._prefill.match(hashes), (len(prompt) - 1) // self._block_tokens)
        hits = Hits(len(prompt), prefill * self._block_tokens, self._main.match(hashes) * self._block_tokens)
        self._prefill.keep(hashes)
        self._main.keep(hashes)
        self.tally.add(hits)
        return hits

    def answered(self, prompt: Ids, answer: Ids) -> None:
        """The last id of the answer has no KV: nobody computed what follows it."""
        if self._keeps_output and answer:
            self._main.keep(chain_hashes(prompt + answer[:-1], self._block_tokens, ""))
