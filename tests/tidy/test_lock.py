"""requirements.lock: complete for pyproject.toml, pinned, hashed, and without any index address."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version


@pytest.fixture(scope="module")
def locked(root: Path) -> dict[str, str]:
    """The lock's entries by package name, each with its hashes."""
    text = (root / "requirements.lock").read_text()
    entries = re.split(r"^(?=[a-z0-9])", text, flags=re.MULTILINE)[1:]
    return {entry.partition("==")[0]: entry for entry in entries}


def test_lock_pins_every_package_by_hash(locked: dict[str, str]) -> None:
    loose = [
        name
        for name, entry in locked.items()
        if not re.match(
            r"[a-z0-9-]+==[^ ]+( ; [^\\]+)? \\\n( +--hash=sha256:[0-9a-f]{64}( \\)?\n)+$", entry
        )
    ]
    assert loose == []


def test_lock_names_no_address(root: Path) -> None:
    text = (root / "requirements.lock").read_text()
    assert not re.search(r"://|--(extra-)?index-url|--find-links|--trusted-host", text)


def test_lock_satisfies_pyproject(locked: dict[str, str], root: Path) -> None:
    pyproject = tomllib.loads((root / "pyproject.toml").read_text())
    unmet = [
        str(wanted)
        for wanted in _requirements(pyproject)
        if canonicalize_name(wanted.name) not in locked
        or not wanted.specifier.contains(_version(locked[canonicalize_name(wanted.name)]))
    ]
    assert unmet == [], "run 'make lock'"


def test_setup_has_the_locked_setuptools_before_anything_is_built(
    locked: dict[str, str], root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pyspark comes as source: the setuptools that Python 3.11's venv brings cannot build it."""
    spec = importlib.util.spec_from_file_location("penstock_setup", root / "tools" / "setup.py")
    assert spec is not None and spec.loader is not None
    setup = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(setup)
    installed: list[str] = []

    def note(entries: Iterable[str], *, quiet: bool = False) -> bool:
        installed.append("".join(entries))
        return len(installed) < 2  # the second is everything else: the test ends there

    monkeypatch.setattr(setup, "install_entries", note)
    with pytest.raises(setup.SetupError):
        setup.install_python_packages()
    assert locked["setuptools"] in installed[0]
    assert locked["pyspark"] in installed[1]


def test_every_run_time_dependency_is_imported(root: Path) -> None:
    """What only tests import belongs into the extra `dev`."""
    pyproject = tomllib.loads((root / "pyproject.toml").read_text())
    source = "\n".join(file.read_text() for file in (root / "src").rglob("*.py"))
    unused = [
        name
        for name in (Requirement(text).name for text in pyproject["project"]["dependencies"])
        # Also by name of what wraps it: uvicorn.protocols.http.httptools_impl.
        if not re.search(rf"^\s*(from|import) .*{name.replace('-', '_')}", source, re.MULTILINE)
    ]
    assert unused == []


def test_every_dependency_has_its_reason_written_down(root: Path) -> None:
    decisions = (root / "docs" / "decisions.md").read_text()
    pyproject = tomllib.loads((root / "pyproject.toml").read_text())
    silent = [each.name for each in _requirements(pyproject) if f"`{each.name}`" not in decisions]
    assert silent == []


def _requirements(pyproject: dict[str, Any]) -> list[Requirement]:
    groups = [
        pyproject["build-system"]["requires"],
        pyproject["project"]["dependencies"],
        *pyproject["project"]["optional-dependencies"].values(),
    ]
    wanted = [Requirement(text) for group in groups for text in group]
    return [each for each in wanted if each.name != "penstock"]  # an extra that brings another


def _version(entry: str) -> Version:
    return Version(entry.partition("==")[2].split()[0])
