"""Measures the parts, one after the other, on an idle machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def measure(parts: list[str], file: Path, *, resume: bool, trial: bool) -> dict[str, Any]:
    """Returns the content of the file after each of the parts was measured and stored."""
    raise NotImplementedError
