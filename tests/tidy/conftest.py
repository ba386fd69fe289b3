"""What the tidy tests look at: the files of this checkout, not the installed package."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CODE_FOLDERS = ("src", "tests", "benchmarks", "tools")


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def code_files() -> list[Path]:
    """Every Python file that we write."""
    files = [file for folder in CODE_FOLDERS for file in _python_files(ROOT / folder)]
    assert files
    return files


@pytest.fixture(scope="session")
def cython_files() -> list[Path]:
    """Every Cython file that we write."""
    files = sorted(file for kind in ("*.pyx", "*.pxd") for file in (ROOT / "src").rglob(kind))
    assert files
    return files


@pytest.fixture(scope="session")
def source_files() -> list[Path]:
    """The Python files of the package itself."""
    files = _python_files(ROOT / "src")
    assert files
    return files


@pytest.fixture(scope="session")
def repository_files() -> list[Path]:
    """Everything that is, or would be, committed."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    names = [name for name in listed.stdout.split("\0") if name]
    return [ROOT / name for name in names if (ROOT / name).is_file()]


def _python_files(folder: Path) -> list[Path]:
    return sorted(file for file in folder.rglob("*.py") if "node_modules" not in file.parts)
