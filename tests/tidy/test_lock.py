"""requirements.lock: complete for pyproject.toml, pinned, hashed, and without any index address."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version
from tools import setup


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
    locked: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """pyspark comes as source: the setuptools that Python 3.11's venv brings cannot build it."""
    installed: list[str] = []

    def note(entries: Iterable[str], *, quiet: bool = False) -> bool:
        installed.append("".join(entries))
        return len(installed) < 2  # the second is everything else: the test ends there

    monkeypatch.setattr(setup, "install_entries", note)
    monkeypatch.setattr(setup, "remove_strangers", lambda known: None)
    with pytest.raises(setup.SetupError):
        setup.install_python_packages("serve")
    assert locked["setuptools"] in installed[0]
    assert locked["pyspark"] in installed[1]


def test_serve_installs_what_running_needs_and_nothing_else(
    locked: dict[str, str], root: Path
) -> None:
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *extras["spark"], *extras["capture"]]
    needed = set(_closure([text for text in wanted if not text.startswith(project["name"])]))
    named = setup.read_serve_names((root / "requirements.lock").read_text())
    assert needed <= named, "run 'make lock'"
    unneeded = {name for name in named - needed if _applies_here(locked[name])}
    assert unneeded == set(), "run 'make lock'"
    assert {"ruff", "mypy", "playwright", "azure-eventhub", "pandas"} & named == set()


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
    own = pyproject["project"]["name"]  # an extra that brings another
    return [each for each in wanted if each.name != own]


def _closure(wanted: list[str]) -> Iterable[str]:
    """The names of what is needed on this machine, by the metadata of what is installed."""
    seen: set[tuple[str, str]] = set()
    waiting = [Requirement(text) for text in wanted]
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        for extra in ("", *requirement.extras):
            if (name, extra) in seen:
                continue
            seen.add((name, extra))
            for text in distribution(name).requires or []:
                needed = Requirement(text)
                if needed.marker is None or needed.marker.evaluate({"extra": extra}):
                    waiting.append(needed)
    return {name for name, _ in seen}


def _applies_here(entry: str) -> bool:
    marker = re.match(r"[^ ]+ ; ([^\\]+)", entry)
    return marker is None or Marker(marker[1].strip()).evaluate()


def _version(entry: str) -> Version:
    return Version(entry.partition("==")[2].split()[0])
