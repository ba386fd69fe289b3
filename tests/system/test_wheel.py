"""The wheel: built from a clean copy, tried in an environment that holds only what it declares."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import penstock

ROOT = Path(__file__).resolve().parents[2]
PORTAL = ROOT / "src" / "penstock" / "portal"
DEADLINE_S = 90
IMPORT_ALL = """
import importlib, pkgutil, penstock
walked = pkgutil.walk_packages(penstock.__path__, "penstock.")
names = [found.name for found in walked if not found.name.endswith("__main__")]
for name in names:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as absent:
        # Classes that Spark calls are subclasses of Spark's; others work on Arrow arrays.
        needs_more = name.endswith(
            ("_source", ".sink", ".stream", ".history", "rows", "arrow_arrays", ".compact", "_file")
        )
        if not (needs_more and absent.name in ("pyspark", "pyarrow")):
            raise
print(len(names), penstock.__file__)
"""


def run(*command: str | Path) -> str:
    done = subprocess.run(
        command, cwd="/", capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy: leftovers of the working tree cannot slip in."""
    copy, built = tmp_path_factory.mktemp("copy"), tmp_path_factory.mktemp("built")
    shutil.copytree(
        ROOT / "src", copy / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info")
    )
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy / name)
    options = ("--wheel", "--no-isolation", "--outdir", built)
    run(sys.executable, "-m", "build", *options, copy)
    (file,) = built.iterdir()
    return file


@pytest.fixture(scope="module")
def contents(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


@pytest.fixture(scope="module")
def clean(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment's bin/: the wheel, and beside it what its own metadata asks for, no more."""
    root = tmp_path_factory.mktemp("clean")
    venv.create(root, with_pip=False, symlinks=True)
    python = root / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check")
    run(*pip, "install", "--quiet", "--no-deps", "--no-index", "--no-compile", wheel)
    (packages,) = root.glob("lib/python*/site-packages")
    (metadata,) = packages.glob("penstock-*.dist-info")
    for needed in _closure(Distribution.at(metadata)):
        _link(needed, packages)
    return python.parent


def test_wheel_holds_the_package_its_types_and_its_licence(contents: list[str]) -> None:
    wanted = [
        *(ROOT / "src").rglob("*.py"),
        *(PORTAL / "static").iterdir(),
        *(PORTAL / "templates").iterdir(),
        *(PORTAL / "vendor").glob("*/*"),
    ]
    missing = {str(file.relative_to(ROOT / "src")) for file in wanted} - set(contents)
    assert missing == set()
    assert "penstock/py.typed" in contents
    assert any(re.fullmatch(r"penstock-.*\.dist-info/licenses/LICENSE", name) for name in contents)


def test_wheel_holds_nothing_else(contents: list[str]) -> None:
    tops = {name.split("/")[0] for name in contents}
    ours = {"penstock", "pyspark_eventhubs"}  # the second is where Spark looks for formats
    assert tops == {*ours, f"penstock-{penstock.__version__}.dist-info"}
    assert [name for name in contents if "/test_" in name or "__pycache__" in name] == []


def test_command_works_where_only_declared_dependencies_are(clean: Path) -> None:
    assert run(clean / "penstock", "--version").split()[-1] == penstock.__version__


def test_every_module_imports_where_only_declared_dependencies_are(clean: Path) -> None:
    count, where = run(clean / "python", "-I", "-c", IMPORT_ALL).split()
    assert int(count) > 10
    assert Path(where).is_relative_to(clean.parent)


def _closure(start: Distribution) -> Iterator[Distribution]:
    """What the metadata asks for on this machine, and what that asks for, from our environment."""
    seen: set[str] = set()
    waiting = [start]
    while waiting:
        for text in waiting.pop().requires or []:
            wanted = Requirement(text)
            applies = wanted.marker is None or wanted.marker.evaluate({"extra": ""})
            if applies and wanted.name not in seen:
                seen.add(wanted.name)
                found = distribution(wanted.name)
                assert wanted.specifier.contains(found.version), text
                waiting.append(found)
                yield found


def _link(needed: Distribution, packages: Path) -> None:
    for top in {file.parts[0] for file in needed.files or []} - {"..", "__pycache__"}:
        link = packages / top
        if not link.exists():
            link.symlink_to(Path(str(needed.locate_file(top))))
