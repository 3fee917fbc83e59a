"""Token ids of made-up texts, by name: the same name gives the same ids, and different names different ones.

Used by every workload. Ids lie in the sim's vocabulary. Long prompts are made of them all the time, so a passage is put together
from slices and costs next to nothing a token.
"""

from __future__ import annotations

from random import Random

from virtual.workloads.base import Ids

_IDS = 1000  # the sim's vocabulary has a few more
_NAME_IDS = 4
NAMES = _IDS**_NAME_IDS
_FILLER = tuple(range(_IDS))


def passage(name: int, tokens: int) -> Ids:
    """Begins with its name, in [0, NAMES), as far as that fits; what follows is the same in all passages."""
    named = tuple(name // _IDS**digit % _IDS for digit in range(_NAME_IDS))
    return (named + _FILLER * (tokens // _IDS + 1))[:tokens]


def new_passage(random: Random, tokens: int) -> Ids:
    """One that nobody has seen before."""
    return passage(random.randrange(NAMES), tokens)
