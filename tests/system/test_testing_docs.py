"""docs/guides/testing.md: its examples, run as a reader would run them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("azure.eventhub", reason="the Python SDK is not installed")

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "guides" / "testing.md"
BLOCK = re.compile(r"^```python\n# (\w+\.py)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INI = """
[pytest]
addopts = -q -p no:cacheprovider
asyncio_default_fixture_loop_scope = function
"""


@pytest.mark.sdk
def test_examples_of_the_document_pass(tmp_path: Path) -> None:
    blocks = BLOCK.findall(DOCUMENT.read_text())
    names = [name for name, _ in blocks]
    assert "sender.py" in names
    assert len(set(names)) == len(names) == DOCUMENT.read_text().count("```python")
    for name, code in blocks:
        (tmp_path / name).write_text(code)
    (tmp_path / "pytest.ini").write_text(INI)
    ended = subprocess.run(
        [sys.executable, "-m", "pytest"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "7 passed" in ended.stdout
