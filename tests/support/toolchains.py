"""Tools of other languages that tests use: found, checked for their version, and prepared once.

`python -m tests.support.toolchains` prepares all of them before `make test`; with CI=true it first
installs what is missing where the machine's package manager has a sufficient version. Fixtures call
`require(...)`: an absent tool skips the test with one line; one that is present and fails, fails.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.support import spark_classes

ROOT = Path(__file__).resolve().parents[2]
COMPATIBILITY = ROOT / "tests" / "compatibility"
NODE = COMPATIBILITY / "node"
GO = COMPATIBILITY / "go"
S3 = COMPATIBILITY / "s3"
JAVA = COMPATIBILITY / "java"
BUILT = Path(sys.prefix) / "toolchains"  # one environment, one set of programs
GO_PROGRAM = BUILT / "compatibility-go"
S3_PROGRAM = BUILT / "s3-server"
JAVA_LIBRARIES = BUILT / "java-lib"
JAVA_CLASSES = BUILT / "java-classes"
PREPARATION_DEADLINE_S = 900  # packages may come over a slow network

Version = tuple[int, ...]


class Absent(Exception):
    """The tool is not here, or is older than its project file asks for. One line."""


class Program(NamedTuple):
    """A program on the PATH, and the version that a project file asks for."""

    names: tuple[str, ...]
    version_arguments: tuple[str, ...]
    needed: Callable[[], Version]
    asked_by: str
    package: str  # of Debian

    def find(self) -> str:
        path = next((path for name in self.names if (path := shutil.which(name))), None)
        if path is None:
            raise Absent(f"{self.names[0]} is not installed")
        needed = self.needed()
        if needed and (version := self._version(path)) < needed:
            raise Absent(
                f"{self.names[0]} has version {_text(version)}; "
                f"{self.asked_by} asks for {_text(needed)}"
            )
        return path

    def _version(self, path: str) -> Version:
        result = subprocess.run(
            [path, *self.version_arguments], capture_output=True, text=True, timeout=60
        )
        return _numbers(result.stdout + result.stderr)


class Preparation(NamedTuple):
    """What makes a tool ready: `inputs` decide whether it has to run again."""

    programs: tuple[str, ...]
    inputs: tuple[Path, ...]
    commands: Callable[[], list[tuple[list[str], Path]]]
    outputs: tuple[Path, ...]


def _numbers(text: str) -> Version:
    match = re.search(r"(\d+)\.(\d+)(?:\.(\d+))?", text)
    return tuple(int(part) for part in match.groups() if part) if match else (0,)


def _text(version: Version) -> str:
    return ".".join(map(str, version))


def _go_version() -> Version:
    match = re.search(r"^go ([\d.]+)", (GO / "go.mod").read_text(), re.MULTILINE)
    assert match
    return _numbers(match[1])


def _node_version() -> Version:
    engines = json.loads((NODE / "package.json").read_text())["engines"]
    return _numbers(engines["node"])


def _java_version() -> Version:
    release = ET.parse(JAVA / "pom.xml").find(".//maven.compiler.release")
    assert release is not None and release.text
    return (int(release.text),)


def _any_version() -> Version:
    return ()


PROGRAMS = {
    "node": Program(("node",), ("--version",), _node_version, "package.json", "nodejs"),
    "npm": Program(("npm",), ("--version",), _any_version, "package.json", "npm"),
    "go": Program(("go",), ("version",), _go_version, "go.mod", "golang-go"),
    "javac": Program(("javac",), ("-version",), _java_version, "pom.xml", "default-jdk-headless"),
    "mvn": Program(("mvn",), ("--version",), _any_version, "pom.xml", "maven"),
    "chromium": Program(
        ("chromium", "chromium-browser"), ("--version",), _any_version, "-", "chromium"
    ),
    # Makes the root that container images are tried in where no container engine is.
    "debootstrap": Program(("debootstrap",), ("--version",), _any_version, "-", "debootstrap"),
}


def _npm_commands() -> list[tuple[list[str], Path]]:
    npm = PROGRAMS["npm"].find()
    return [([npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"], NODE)]


def _go_build(program: Path, folder: Path) -> list[tuple[list[str], Path]]:
    go = PROGRAMS["go"].find()
    return [([go, "build", "-mod=readonly", "-o", str(program), "."], folder)]


def _java_commands() -> list[tuple[list[str], Path]]:
    copy = ["dependency:copy-dependencies", f"-DoutputDirectory={JAVA_LIBRARIES}"]
    sources = [str(source) for source in sorted(JAVA.glob("*.java"))]
    compile_ = ["-cp", f"{JAVA_LIBRARIES}/*", "-d", str(JAVA_CLASSES), *sources]
    return [
        ([PROGRAMS["mvn"].find(), "-q", "-B", *copy], JAVA),
        ([PROGRAMS["javac"].find(), *compile_], JAVA),
    ]


def _sources(folder: Path, *patterns: str) -> tuple[Path, ...]:
    return tuple(file for pattern in patterns for file in sorted(folder.glob(pattern)))


PREPARATIONS = {
    "node": Preparation(
        ("node", "npm"),
        _sources(NODE, "package*.json"),
        _npm_commands,
        (NODE / "node_modules" / ".package-lock.json",),
    ),
    "go": Preparation(
        ("go",), _sources(GO, "go.*", "*.go"), lambda: _go_build(GO_PROGRAM, GO), (GO_PROGRAM,)
    ),
    "s3": Preparation(
        ("go",), _sources(S3, "go.*", "*.go"), lambda: _go_build(S3_PROGRAM, S3), (S3_PROGRAM,)
    ),
    "java": Preparation(
        ("javac", "mvn"),
        _sources(JAVA, "pom.xml", "*.java"),
        _java_commands,
        (JAVA_LIBRARIES, JAVA_CLASSES),
    ),
    "chromium": Preparation(("chromium",), (), list, ()),
    "debootstrap": Preparation(("debootstrap",), (), list, ()),
}


def require(name: str) -> str:
    """Prepare a tool for a test; returns the path of its program. Skips or fails the test."""
    try:
        return prepare(name)
    except Absent as reason:
        pytest.skip(str(reason))


def prepare(name: str) -> str:
    """Raises Absent, or AssertionError with the end of the output of a command that failed."""
    preparation = PREPARATIONS[name]
    paths = [PROGRAMS[program].find() for program in preparation.programs]
    with _locked(name):
        stamp = BUILT / f"{name}.stamp"
        digest = _digest(preparation, paths)
        done = stamp.exists() and stamp.read_text() == digest
        if not done or not all(output.exists() for output in preparation.outputs):
            for command, folder in preparation.commands():
                _run(command, folder)
            stamp.write_text(digest)
    return paths[0]


def _run(command: list[str], folder: Path) -> None:
    result = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "GOTOOLCHAIN": "local"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=PREPARATION_DEADLINE_S,
    )
    end = result.stdout[-3000:]
    assert result.returncode == 0, f"{' '.join(command[:3])} failed in {folder}:\n{end}"


def _digest(preparation: Preparation, paths: list[str]) -> str:
    digest = hashlib.sha256(json.dumps(paths).encode())
    for file in preparation.inputs:
        digest.update(file.read_bytes())
    return digest.hexdigest()


@contextmanager
def _locked(name: str) -> Iterator[None]:
    """Several test processes prepare a tool once."""
    BUILT.mkdir(parents=True, exist_ok=True)
    with (BUILT / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _install_missing() -> None:
    """Debian's packages of missing programs, where their version is sufficient."""
    wanted = []
    for program in PROGRAMS.values():
        try:
            program.find()
        except Absent:
            wanted.append(program)
    if not wanted:
        return
    apt = shutil.which("apt-get")
    if apt is None or os.geteuid() != 0:
        print("missing tools are not installed: this needs root and apt-get")
        return
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    subprocess.run([apt, "update", "-qq"], env=environment, check=False, timeout=300)
    for program in wanted:
        policy = subprocess.run(
            ["apt-cache", "policy", program.package], capture_output=True, text=True, timeout=60
        ).stdout
        candidate = re.search(r"Candidate: (?:\d+:)?(\S+)", policy)
        if candidate is None or _numbers(candidate[1]) < program.needed():
            version = candidate[1] if candidate else "none"
            needed = _text(program.needed()) or "any version"
            print(f"{program.package} is not installed: apt has {version}, needed is {needed}")
            continue
        command = [apt, "install", "-y", "-qq", "--no-install-recommends", program.package]
        result = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=900
        )
        outcome = (
            "installed" if result.returncode == 0 else "not installed: " + result.stderr[-300:]
        )
        print(f"{program.package} {candidate[1]}: {outcome}", flush=True)


def _prepared(name: str) -> str:
    return f"ready ({prepare(name)})"


def main() -> int:
    """Prepare everything and print one line for each tool."""
    if os.environ.get("CI") == "true":
        _install_missing()
    failed = 0
    makers = {name: partial(_prepared, name) for name in PREPARATIONS}
    for name, make in (makers | {"spark-classes": spark_classes.prepare}).items():
        begin_s = time.monotonic()
        try:
            outcome = make()
        except Absent as reason:
            outcome = f"absent, its tests are skipped: {reason}"
        except (AssertionError, subprocess.TimeoutExpired) as error:
            outcome = f"FAILED: {error}"
            failed += 1
        print(f"{name}: {outcome}, {time.monotonic() - begin_s:.0f} s", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
