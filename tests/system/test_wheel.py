"""The wheel and the source distribution, as `make wheel` builds them, installed as README says.

The environment of README's first block has what the wheel declares and no extra. pip takes the
declared packages from wheels of this environment's own; `make test-full ARGS=documents` takes them
from the index, as a user does.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import stat
import subprocess
import sys
import tarfile
import time
import urllib.request
import venv
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import Distribution, distribution
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from packaging.requirements import Requirement
from tools import wheel as wheel_builder
from tools.setup import directory_bytes

import penstock

if TYPE_CHECKING:
    from tests.conftest import ServerFactory

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 110
INSTALLED_BYTES_MAX = 120_000_000
PREFIX = f"penstock_eventhubs-{penstock.__version__}"
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


def run(
    *command: str | Path,
    environ: dict[str, str] | None = None,
    cwd: Path = ROOT,
    stderr: int = subprocess.PIPE,
) -> str:
    """Returns what it prints on stdout; with `stderr=STDOUT` all that it prints."""
    done = subprocess.run(
        command,
        cwd=cwd,
        env=clean_environ() | (environ or {}),
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + (done.stderr or "")
    return done.stdout


def clean_environ() -> dict[str, str]:
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PENSTOCK_", "PYTHON")) and name != "PIP_FIND_LINKS"
    }


@pytest.fixture(scope="module")
def builds(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Path], list[Path]]:
    """The files of two builds at once, each in a directory of its own. `make test` compiles without
    optimization, which takes half the time."""
    command = (sys.executable, "-m", "tools.wheel")
    directories = [tmp_path_factory.mktemp(name) for name in ("first", "second-build")]
    flags = {"PENSTOCK_CFLAGS": "-O0 -g0"}
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda each: run(*command, each, environ=flags), directories))
    first, second = (sorted(directory.iterdir()) for directory in directories)
    return first, second


@pytest.fixture(scope="module")
def wheel(builds: tuple[list[Path], list[Path]]) -> Path:
    return builds[0][0]


@pytest.fixture(scope="module")
def archive(builds: tuple[list[Path], list[Path]]) -> Path:
    return builds[0][1]


def test_two_builds_of_one_commit_are_the_same(builds: tuple[list[Path], list[Path]]) -> None:
    first, second = builds
    assert [file.name for file in first] == [file.name for file in second]
    assert [file.suffix for file in first] == [".whl", ".gz"]
    for one, other in zip(first, second, strict=True):
        assert one.read_bytes() == other.read_bytes(), f"{one.name} depends on the build"


def test_compiled_kernels_name_no_directory() -> None:
    """Those of this environment, which were built in this checkout with the flags of a release."""
    libraries = sorted((ROOT / "src").rglob("*.so"))
    if not libraries:
        pytest.skip("no C compiler: nothing is compiled")
    naming = [file.name for file in libraries if str(ROOT).encode() in file.read_bytes()]
    assert naming == []


def test_archives_have_sorted_members_and_fixed_modes(wheel: Path, archive: Path) -> None:
    with zipfile.ZipFile(wheel) as opened:
        infos = opened.infolist()
    names = [info.filename for info in infos]
    assert names == sorted(names, key=lambda name: (".dist-info/" in name, name))
    assert {info.external_attr >> 16 for info in infos} == {stat.S_IFREG | 0o644}
    commit_s = wheel_builder.commit_time()
    even_s = commit_s - commit_s % 2  # a zip file counts in two seconds
    assert {info.date_time for info in infos} == {time.gmtime(even_s)[:6]}
    with tarfile.open(archive) as packed:
        members = packed.getmembers()
    assert [member.name for member in members] == sorted(member.name for member in members)
    assert {(m.mode, m.uid, m.gid, m.mtime) for m in members} == {(0o644, 0, 0, commit_s)}


def test_wheel_holds_the_package_its_types_and_its_license(wheel: Path) -> None:
    contents = set(zipfile.ZipFile(wheel).namelist())
    wanted = [
        *(ROOT / "src").rglob("*.py"),
        *(ROOT / "src" / "penstock" / "portal" / "static").iterdir(),
    ]
    missing = {str(file.relative_to(ROOT / "src")) for file in wanted} - contents
    assert missing == set()
    assert "penstock/py.typed" in contents
    assert f"{PREFIX}.dist-info/licenses/LICENSE" in contents


def test_wheel_holds_nothing_else(wheel: Path) -> None:
    contents = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in contents}
    ours = {"penstock", "pyspark_eventhubs"}  # the second is where Spark looks for formats
    assert tops == {*ours, f"{PREFIX}.dist-info"}
    assert [name for name in contents if "/test_" in name or "__pycache__" in name] == []


def test_record_fits_the_members_and_the_tag_the_file_name(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as opened:
        record = opened.read(f"{PREFIX}.dist-info/RECORD").decode()
        for line in record.splitlines():
            name, digest, _ = line.rsplit(",", 2)
            if digest:
                found = hashlib.sha256(opened.read(name)).digest()
                expected = base64.urlsafe_b64encode(found).rstrip(b"=").decode()
                assert digest == f"sha256={expected}", name
        tags = re.findall("^Tag: (.+)$", opened.read(f"{PREFIX}.dist-info/WHEEL").decode(), re.M)
    assert [f"{PREFIX}-{tag}.whl" for tag in tags] == [wheel.name]
    assert "-linux_" not in wheel.name  # an index refuses it: it names no C library


def test_source_distribution_installs_without_a_compiler(archive: Path, tmp_path: Path) -> None:
    environ = {"CC": "/nonexistent/cc", "PIP_NO_INDEX": "1"}
    pip = (sys.executable, "-m", "pip", "install", "-v", "--no-deps", "--no-build-isolation")
    target = ("--no-compile", "--target", tmp_path, archive)
    output = run(*pip, *target, environ=environ, stderr=subprocess.STDOUT)
    assert output.count("the compiled kernels were not built") == 1
    code = "import penstock; from penstock.kernels import KERNEL; print(KERNEL, penstock.__file__)"
    kernel, where = run(
        sys.executable, "-c", code, environ={"PYTHONPATH": str(tmp_path)}, cwd=tmp_path
    ).split()
    assert (kernel, Path(where)) == ("pure", tmp_path / "penstock" / "__init__.py")


# --- README's first block in an empty environment -------------------------------------------------


@dataclass
class Installed:
    """The environment that README's first block filled."""

    bin: Path
    bytes: int
    seconds: float

    def penstock(self, *arguments: str | Path, data: Path) -> str:
        return run(self.bin / "penstock", *arguments, environ={"PENSTOCK_DATA": str(data)})


def install_by_readme(place: Path, files: list[Path], *, has_index: bool) -> Installed:
    """Run README's first block in a new environment, with the built files in `dist`."""
    dist = place / "dist"
    dist.mkdir()
    for file in files:
        (dist / file.name).symlink_to(file)
    environment = place / "environment"
    venv.create(environment, with_pip=True, symlinks=True)
    environ = {"PATH": f"{environment / 'bin'}:{os.environ['PATH']}", "PIP_FIND_LINKS": "dist"}
    environ |= {"PIP_NO_CACHE_DIR": "1"}
    if not has_index:
        environ["PIP_NO_INDEX"] = "1"
        write_declared_wheels(next(file for file in files if file.suffix == ".whl"), dist)
    before = directory_bytes(environment)
    started_s = time.monotonic()
    run("sh", "-ec", read_first_block(), environ=environ, cwd=place)
    seconds = time.monotonic() - started_s
    return Installed(environment / "bin", directory_bytes(environment) - before, seconds)


def read_first_block() -> str:
    block = re.search(r"^```(?:sh|bash)\n(.*?)^```", (ROOT / "README.md").read_text(), re.S | re.M)
    assert block is not None
    return block[1]


@pytest.fixture(scope="module")
def installed(
    builds: tuple[list[Path], list[Path]], tmp_path_factory: pytest.TempPathFactory
) -> Installed:
    return install_by_readme(tmp_path_factory.mktemp("readme"), builds[0], has_index=False)


def test_readme_begins_with_the_installation() -> None:
    assert read_first_block().splitlines()[0] == "pip install penstock-eventhubs"
    intro = (ROOT / "README.md").read_text().partition("```")[0]
    assert "Not yet on PyPI: run `make wheel`, then add `--find-links dist`." in intro


def test_installation_is_small_and_the_first_event_is_read(
    installed: Installed, start_server: ServerFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    check_first_event(installed, start_server, capsys)


@pytest.mark.full("documents")
def test_installation_from_the_index(
    tmp_path: Path, start_server: ServerFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    files = wheel_builder.build(tmp_path / "built")
    installed = install_by_readme(tmp_path, files, has_index=True)
    check_first_event(installed, start_server, capsys)


def check_first_event(
    installed: Installed, start_server: ServerFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    assert installed.bytes < INSTALLED_BYTES_MAX
    started_s = time.monotonic()
    server = start_server("--portal-port", "0", program=(str(installed.bin / "penstock"),))
    installed.penstock("send", "events", "--text", "first event", data=server.data)
    tail = ("tail", "events", "--from", "earliest", "-n", "1", "--format", "%b")
    assert installed.penstock(*tail, data=server.data).splitlines() == ["first event"]
    seconds = time.monotonic() - started_s
    with urllib.request.urlopen(server["admin"] + "/health", timeout=DEADLINE_S) as answer:
        assert answer.status == 200
    with capsys.disabled():
        print(
            f"\ninstalled {installed.bytes / 1e6:.0f} MB in {installed.seconds:.1f} s, "
            f"first event read {seconds:.1f} s later"
        )


def test_command_has_the_version(installed: Installed, tmp_path: Path) -> None:
    output = installed.penstock("--version", data=tmp_path)
    assert output.split() == ["penstock", penstock.__version__]


def test_every_module_imports_where_only_declared_dependencies_are(installed: Installed) -> None:
    count, where = run(installed.bin / "python", "-I", "-c", IMPORT_ALL).split()
    assert int(count) > 10
    assert Path(where).is_relative_to(installed.bin.parent)


# --- Spark and Capture without their extras -------------------------------------------------------


SPARK = "pip install 'penstock-eventhubs[spark]'"
CAPTURE = "pip install 'penstock-eventhubs[capture]'"


@pytest.mark.parametrize(
    ("code", "command"),
    [
        ("import penstock.spark; penstock.spark.session()", SPARK),
        ("from penstock.spark import EventHubsDataSource", SPARK),
        (
            "from penstock.spark import session; session(remote='sc://localhost')",
            "pip install 'penstock-eventhubs[connect]'",
        ),
    ],
)
def test_python_names_the_extra_that_is_missing(
    installed: Installed, code: str, command: str
) -> None:
    done = subprocess.run(
        [installed.bin / "python", "-I", "-c", code], capture_output=True, text=True, check=False
    )
    last = done.stderr.splitlines()[-1]
    assert last.startswith("penstock.model.extras.MissingPackage: ")
    assert last.endswith(f"Run: {command}")


def test_service_and_commands_name_the_extra_that_is_missing(
    installed: Installed, start_server: ServerFactory, tmp_path: Path
) -> None:
    program = str(installed.bin / "penstock")
    server = start_server(program=(program,))
    job = tmp_path / "job.py"
    job.write_text("")

    def fail(*arguments: str | Path) -> str:
        environ = clean_environ() | {"PENSTOCK_DATA": str(server.data)}
        command = [program, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, env=environ, check=False)
        assert done.returncode in (1, 2), done.stdout
        return " ".join(done.stderr.split())

    assert SPARK in fail("spark", "submit", job)
    assert SPARK in fail("pipeline", "run", job)
    enabled = fail("capture", "enable", "events")
    assert "is switched on, but it cannot run: " in enabled
    assert CAPTURE in enabled
    assert CAPTURE in fail("capture", "run")
    with urllib.request.urlopen(server["admin"] + "/ready", timeout=DEADLINE_S) as answer:
        ready = answer.read().decode()
    assert re.search(r'"capture": ?\{?[^}]*fail', ready), ready


# --- wheels of what is installed ------------------------------------------------------------------


def write_declared_wheels(wheel: Path, directory: Path) -> None:
    """What the wheel's metadata asks for, and what that asks for, in the versions of this
    environment."""
    with zipfile.ZipFile(wheel) as opened:
        metadata = opened.read(f"{PREFIX}.dist-info/METADATA").decode()
    declared = re.findall("^Requires-Dist: (.+)$", metadata, re.M)
    for needed in _closure(declared):
        _write_wheel(needed, directory)


def _closure(declared: list[str]) -> Iterator[Distribution]:
    seen: set[str] = set()
    waiting = list(declared)
    while waiting:
        wanted = Requirement(waiting.pop())
        applies = wanted.marker is None or wanted.marker.evaluate({"extra": ""})
        if applies and wanted.name not in seen:
            seen.add(wanted.name)
            found = distribution(wanted.name)
            assert wanted.specifier.contains(found.version), wanted
            waiting += found.requires or []
            yield found


def _write_wheel(installed: Distribution, directory: Path) -> None:
    text = installed.read_text("WHEEL") or ""
    tag = re.findall("^Tag: (.+)$", text, re.M)[-1]
    name = re.sub("[-_.]+", "_", installed.metadata["Name"])
    with zipfile.ZipFile(directory / f"{name}-{installed.version}-{tag}.whl", "w") as packed:
        for file in installed.files or []:
            # Scripts are made again, from entry_points.txt.
            if file.parts[0] != ".." and file.suffix != ".pyc":
                packed.write(str(installed.locate_file(file)), str(file))
