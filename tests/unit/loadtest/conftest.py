"""locust puts gevent in the place of sockets, threads and time when it is imported: not here, where asyncio's tests run too."""

from __future__ import annotations

import importlib

import pytest

with pytest.MonkeyPatch.context() as patch:  # for this import alone: a process that a test starts has to be patched
    patch.setenv("LOCUST_SKIP_MONKEY_PATCH", "1")
    importlib.import_module("locust")
