"""The generated modules in pdd/v1 are those of protos/."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_generated_modules_are_current(tmp_path: Path) -> None:
    made = subprocess.run(
        [ROOT / "scripts" / "protos", Path(sys.executable).parent, tmp_path], capture_output=True, text=True, check=False
    )
    assert made.returncode == 0, made.stderr
    fresh = {path.name: path.read_bytes() for path in (tmp_path / "pdd" / "v1").iterdir()}
    committed = {path.name: path.read_bytes() for path in (ROOT / "pdd" / "v1").glob("*_pb2*.py*") if path.is_file()}
    assert sorted(fresh) == sorted(committed), "run `make protos`"
    stale = [name for name, content in fresh.items() if committed[name] != content]
    assert not stale, "run `make protos`"
