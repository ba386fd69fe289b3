"""`make setup`: the environment in .venv, exactly as requirements.lock names it.

    tools/setup.sh [wheel | serve | all]

`wheel` is what building needs, `serve` what running the whole product needs too (broker, portal,
Spark and Capture), `all` the lock file. Each level contains the one before it, and an environment
is never reduced: `make test` completes what `make serve` made.

Uses the standard library only, since nothing else is there yet. A stamp inside .venv holds the
level and a digest of everything the environment is made from; while it fits, nothing is done.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
LOCK = ROOT / "requirements.lock"
STAMP = VENV / "setup-stamp"
PYTHON = VENV / "bin" / "python"
UV = VENV / "bin" / "uv"

LEVELS = ("wheel", "serve", "all")
# Packages without wheels. A machine without a compiler does without them: only tests need them.
BUILT_HERE = ("python-qpid-proton",)
# What the others are built with (pyspark comes as source only): nothing is fetched for a build, so
# they are there before it, in the lock's version and not in the one that Python's venv brought.
BUILD_TOOLS = ("uv", "setuptools", "cython")
# What is in the environment but not in the lock.
NOT_LOCKED = ("pip", "penstock-eventhubs")


class SetupError(Exception):
    """One sentence for the caller of `make setup`."""


class Progress:
    """One line per step with its time and what it added to .venv; while the step works, a line
    every second (the same line again on a terminal)."""

    def __init__(self) -> None:
        self._is_terminal = sys.stdout.isatty()
        self.tick_s = 1.0
        self._step = ""
        self._started_s = self._step_started_s = time.monotonic()
        self._bytes = 0

    def start(self, text: str) -> None:
        self._bytes = directory_bytes(VENV)
        self._print(text, is_final=True)

    def begin(self, step: str) -> None:
        self._step, self._step_started_s = step, time.monotonic()
        self._print(f"{step} ...", is_final=False)

    def tick(self) -> None:
        elapsed_s = time.monotonic() - self._step_started_s
        self._print(f"{self._step} ... {elapsed_s:.0f} s", is_final=False)

    def end(self) -> None:
        added = -self._bytes
        self._bytes = directory_bytes(VENV)
        added = max(added + self._bytes, 0)
        elapsed_s = time.monotonic() - self._step_started_s
        self._print(f"{self._step}: {added / 1e6:,.0f} MB in {elapsed_s:.1f} s", is_final=True)

    def finish(self) -> None:
        elapsed_s = time.monotonic() - self._started_s
        self._print(f"Done: {self._bytes / 1e6:,.0f} MB in {elapsed_s:.0f} s", is_final=True)

    def interrupt(self) -> None:
        """End the current line, so that a message begins a new one."""
        if self._is_terminal:
            print()

    def _print(self, text: str, *, is_final: bool) -> None:
        if self._is_terminal:
            print(f"\r{text}\x1b[K", end="\n" if is_final else "", flush=True)
        else:
            print(text, flush=True)


def main(arguments: Sequence[str]) -> int:
    level = arguments[0] if arguments else LEVELS[-1]
    if level not in LEVELS:
        print(f"usage: tools/setup.sh [{' | '.join(LEVELS)}]", file=sys.stderr)
        return 2
    try:
        guard = lock_environment()
        if not is_up_to_date(level):
            build_environment(level)
        # Also where PYTHONDONTWRITEBYTECODE is set: a start that compiles takes twice as long.
        subprocess.run([PYTHON, "-m", "compileall", "-q", ROOT / "src"], check=False)
    except SetupError as error:
        progress.interrupt()
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        progress.interrupt()
        return 130
    os.close(guard)
    return 0


def lock_environment() -> int:
    """Two makes at once (serve beside test) must not fill one directory together: wait for the
    other one. The lock ends with this process."""
    guard = os.open(ROOT / "tools", os.O_RDONLY)
    is_waiting = False
    while True:
        try:
            fcntl.flock(guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return guard
        except BlockingIOError:
            if is_waiting:
                progress.tick()
            else:
                progress.begin(f"waiting for another make that sets up {VENV}")
            is_waiting = True
            time.sleep(progress.tick_s)


def is_up_to_date(level: str) -> bool:
    installed, digest = read_stamp()
    return LEVELS.index(installed) >= LEVELS.index(level) and digest == environment_digest()


def read_stamp() -> tuple[str, str]:
    """The level of the environment, and the digest that it was made from (empty if none)."""
    if not STAMP.is_file():
        return LEVELS[0], ""
    level, _, digest = STAMP.read_text().partition(" ")
    return (level, digest) if level in LEVELS else (LEVELS[-1], "")  # of before there were levels


def environment_digest() -> str:
    own = [ROOT / "pyproject.toml", ROOT / "setup.py", Path(__file__).resolve()]
    sources = [LOCK, *own, *sorted(ROOT.glob("src/**/*.p[yx][xd]"))]
    # A compiler that came later lets more be installed than last time.
    tools = [shutil.which(tool) is not None for tool in ("cc", "gcc")]
    digest = hashlib.sha256(f"{VENV} {tools}".encode())
    for source in sources:
        digest.update(source.read_bytes())
    return digest.hexdigest()


def build_environment(level: str) -> None:
    installed, made_from = read_stamp()
    digest = environment_digest()
    level = max(level, installed, key=LEVELS.index)
    progress.start(f"Setting up {VENV} from {LOCK.name} for {describe(level)}")
    progress.begin("virtual environment")
    create_venv()
    progress.end()
    if made_from != digest:
        STAMP.write_text(f"{installed} ")
    install_python_packages(level, is_complete=made_from == digest and installed != LEVELS[0])
    STAMP.write_text(f"{level} {digest}")
    progress.finish()


def describe(level: str) -> str:
    return {"wheel": "'make wheel'", "serve": "'make serve'"}.get(level, "every make target")


def install_python_packages(level: str, *, is_complete: bool = False) -> None:
    """Install the packages of the level. `is_complete`: Penstock itself is installed already, from
    the same files."""
    wheels, built_here = split_lock(LOCK.read_text(), level)
    tools = {name: wheels.pop(name) for name in BUILD_TOOLS}
    progress.begin(f"build tools ({', '.join(BUILD_TOOLS)})")
    remove_strangers({*tools, *wheels, *built_here, *NOT_LOCKED})
    if not install_entries(tools.values()):
        raise SetupError(setup_failed(f"the build tools of {LOCK.name}"))
    progress.end()
    if level == "wheel":
        return
    progress.begin(f"{len(wheels)} packages (Spark is the largest)")
    if not install_entries(wheels.values()):
        raise SetupError(setup_failed(LOCK.name))
    progress.end()
    if not is_complete:
        install_penstock()
    for name, entry in built_here.items():
        progress.begin(name)
        if not install_entries([entry], quiet=True):
            progress.interrupt()
            print(f"{name} not installed (needs a C compiler): its tests will be skipped")
        progress.end()


def setup_failed(what: str) -> str:
    return (
        f"Installing {what} into {VENV} failed, for the reason above: put it right, then run the "
        "same command again."
    )


def install_penstock() -> None:
    progress.begin("Penstock and its compiled kernels")
    # Metadata of an earlier name would be a second distribution.
    for metadata in (ROOT / "src").glob("*.egg-info"):
        shutil.rmtree(metadata)
    # With the setuptools of the lock: nothing is fetched for the build.
    if not install("--editable", ROOT):
        raise SetupError(setup_failed("Penstock itself"))
    # Spark finds this one where the machine has no Java; else it starts the machine's own.
    run([PYTHON, "-m", "penstock.spark.java", VENV / "bin"])
    run([PYTHON, "-m", "compileall", "-q", ROOT / "src"], quiet=True)
    progress.end()
    if not run([PYTHON, "-c", "import penstock.kernels._publications"], quiet=True):
        print("compiled kernels not built (they need a C compiler): the pure ones serve, slower")


def create_venv() -> None:
    pip = VENV / "bin" / "pip"
    # Its first line names the directory it was made in: a copied environment is made again.
    if pip.exists() and str(VENV) in pip.read_text() and run([pip, "--version"], quiet=True):
        return
    if not run([sys.executable, "-m", "venv", "--clear", VENV], quiet=True):
        raise SetupError(
            f"{sys.executable} cannot make a virtual environment with pip in it: install its venv "
            "package (python3-venv on Debian and Ubuntu), then run the same command again."
        )


def split_lock(text: str, level: str = LEVELS[-1]) -> tuple[dict[str, str], dict[str, str]]:
    """The level's entries by package name: those that come as wheels, those that are built here."""
    entries = re.split(r"^(?=[A-Za-z0-9])", text, flags=re.MULTILINE)[1:]
    by_name: dict[str, str] = {}
    for entry in entries:  # several of one name are for several Pythons, as their markers say
        name = canonical(re.split(r"[=\[; ]", entry, maxsplit=1)[0])
        by_name[name] = by_name.get(name, "") + entry
    if level != LEVELS[-1]:
        names = set(BUILD_TOOLS) | (read_serve_names(text) if level == "serve" else set())
        by_name = {name: entry for name, entry in by_name.items() if name in names}
    built_here = {name: by_name.pop(name) for name in BUILT_HERE if name in by_name}
    return by_name, built_here


def read_serve_names(text: str) -> set[str]:
    """What running needs: tools/lock.sh writes the names into the lock file's head."""
    line = re.search(r"^# 'make serve' installs: (.+)$", text, flags=re.MULTILINE)
    if line is None:
        raise SetupError(f"{LOCK.name} does not say what 'make serve' installs: run 'make lock'.")
    return set(line[1].split())


def install(*options: str | Path, quiet: bool = False) -> bool:
    """uv takes seconds where pip takes most of a minute, but only pip knows this machine's mirror.

    uv also writes the compiled files at once, so that a first start is as quick as the second.
    """
    common = ("install", "--quiet", "--no-deps", "--no-build-isolation")
    only_uv = ("--python", PYTHON, "--compile-bytecode", "--link-mode", "copy")
    if UV.exists() and run([UV, "pip", *common, *only_uv, *options], quiet=True):
        return True
    only_pip = ("--disable-pip-version-check",)
    return run([PYTHON, "-m", "pip", *common, *only_pip, *options], quiet=quiet)


def install_entries(entries: Iterable[str], *, quiet: bool = False) -> bool:
    part = VENV / "setup-part.txt"
    part.write_text("".join(entries))
    return install("--require-hashes", "--requirement", part, quiet=quiet)


def remove_strangers(known: set[str]) -> None:
    """What an older lock brought would hide a dependency that nobody declares any more. Before
    anything is installed: another distribution may have had the same files."""
    metadata = VENV.glob("lib/python*/site-packages/*-*.dist-info")
    strangers = {canonical(each.stem.rpartition("-")[0]) for each in metadata} - known
    if strangers:
        pip: tuple[str | Path, ...] = (PYTHON, "-m", "pip", "uninstall", "--quiet", "--yes")
        if UV.exists():
            pip = (UV, "pip", "uninstall", "--quiet", "--python", PYTHON)
        run([*pip, *sorted(strangers)])


def run(command: Sequence[str | Path], *, quiet: bool = False) -> bool:
    """Run a command and show that it still works. Its output is printed if it fails."""
    environ = {**os.environ, "PYTHONUTF8": "1"}
    environ.pop("VIRTUAL_ENV", None)
    with tempfile.TemporaryFile() as output:
        try:
            process = subprocess.Popen(
                command, stdout=output, stderr=subprocess.STDOUT, env=environ
            )
        except OSError:
            return False
        while True:
            try:
                code = process.wait(progress.tick_s)
                break
            except subprocess.TimeoutExpired:
                progress.tick()
        if code != 0 and not quiet:
            progress.interrupt()
            output.seek(0)
            sys.stderr.write(output.read().decode(errors="replace"))
    return code == 0


def directory_bytes(directory: Path) -> int:
    """What the files take on disk, as du counts."""
    total = 0
    for entry in os.scandir(directory) if directory.is_dir() else ():
        if entry.is_dir(follow_symlinks=False):
            total += directory_bytes(Path(entry.path))
        else:
            total += entry.stat(follow_symlinks=False).st_blocks * 512
    return total


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


progress = Progress()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
