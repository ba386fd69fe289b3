"""docs/reference/compatibility.md names only tests that exist."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = re.compile(r"`(test_\w+\.py)::(\w+)(?:\[([^\]`]+)\])?`")


@pytest.fixture(scope="module")
def collected() -> set[tuple[str, str, str]]:
    """(file, function, parameters) of every test in this folder."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", str(Path(__file__).parent)]
    listed = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert listed.returncode == 0, listed.stdout + listed.stderr
    found = re.findall(r"^.*?(test_\w+\.py)::(\w+)(?:\[(.*)\])?$", listed.stdout, re.M)
    assert found
    return set(found)


def test_every_row_names_a_test_that_exists(collected: set[tuple[str, str, str]]) -> None:
    rows = REFERENCE.findall((ROOT / "docs" / "reference" / "compatibility.md").read_text())
    assert len(rows) > 100
    missing = [
        f"{f}::{name}[{case}]" for f, name, case in rows if not _is_there(f, name, case, collected)
    ]
    assert missing == []


def _is_there(file: str, name: str, case: str, collected: set[tuple[str, str, str]]) -> bool:
    if all(file != each for each, _, _ in collected):  # its client is not on this machine
        return f"def {name}(" in (Path(__file__).parent / file).read_text()
    return any((file, name) == (f, n) and case in parameters for f, n, parameters in collected)
