"""How benchmarks in virtual time report: a table on the terminal, the same figures as JSON."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

RESULTS = Path(__file__).with_name("results")


def print_table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> None:
    """The first column to the left, the others to the right."""
    rows = [head, *lines]
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    for row in rows:
        first, *rest = (
            cell.ljust(width) if not at else cell.rjust(width) for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        print("  ".join((first, *rest)), flush=True)


def write_json(path: Path, found: Mapping[str, object]) -> None:
    machine = {
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        json.dumps({"at": datetime.now(UTC).isoformat(timespec="seconds"), "machine": machine, **found}, indent=2) + "\n"
    )
    print(f"\nwritten to {path}")
