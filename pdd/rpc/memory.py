"""Makes the C library keep freed memory, instead of giving it back to the system and getting it anew page by page.

Called by `run` before a service does anything. gRPC and the blocks of a transfer take and free a megabyte at a time. With glibc's
defaults most of those are mapped, faulted in and unmapped each time, which costs several times what the transfer itself does
(bench/kv.py). Each of gRPC's threads would also have an arena of its own, kept at a peak of its own; the sum grows over hundreds
of transfers, as a leak does. So there is one arena. A process stays as large as it has ever been, which its budgets bound.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class _Setting:
    """Of mallopt(3)."""

    parameter: int  # as in glibc's malloc.h
    value: int
    variable: str  # of the environment, which sets the same


_SETTINGS = (
    _Setting(-1, -1, "MALLOC_TRIM_THRESHOLD_"),  # never shrink the heap
    _Setting(-2, 128 << 20, "MALLOC_TOP_PAD_"),  # grow it by as many bytes of address space at a time
    _Setting(-3, 1 << 30, "MALLOC_MMAP_THRESHOLD_"),  # keep everything smaller in it
    _Setting(-8, 1, "MALLOC_ARENA_MAX"),
)


def keep_freed_memory(environment: Mapping[str, str]) -> bool:
    """Whether the C library could be told so. What `environment` sets by itself is left as it is."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False  # it is not glibc, and manages its memory in its own way
    results = [mallopt(each.parameter, each.value) for each in _SETTINGS if each.variable not in environment]
    return all(result == 1 for result in results)
