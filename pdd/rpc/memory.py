"""Makes the C library keep freed memory, instead of giving it back to the system and getting it again page by page.

Called once by `run`, before a service allocates anything of size. gRPC and the blocks of a transfer allocate and free a megabyte
at a time; with glibc's defaults each of them is mapped, faulted in and unmapped anew, which costs several times the transfer itself
(bench/kv.py). What a process has freed stays with it from then on: its size is that of its peak, which budgets bound.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping

# Of mallopt(3), from glibc's malloc.h: the parameter, its value, and the environment variable that sets the same.
_TRIM_THRESHOLD = (-1, -1, "MALLOC_TRIM_THRESHOLD_")  # never shrink the heap
_TOP_PAD = (-2, 128 << 20, "MALLOC_TOP_PAD_")  # grow it by as much at a time, in address space only
_MMAP_THRESHOLD = (-3, 1 << 30, "MALLOC_MMAP_THRESHOLD_")  # map nothing apart from the heap


def keep_freed_memory(environment: Mapping[str, str]) -> bool:
    """Whether the C library has such settings and took them. What `environment` sets already is left as it is."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False  # another C library than glibc, which manages its memory its own way
    wanted = [(parameter, value) for parameter, value, name in (_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD) if name not in environment]
    return all([mallopt(parameter, value) == 1 for parameter, value in wanted])
