"""`make setup`: the whole environment into .venv, exactly as requirements.lock names it.

Uses the standard library only, since nothing else is there yet. A stamp inside .venv holds a digest
of everything the environment is made from; when it still fits, there is nothing to do.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
LOCK = ROOT / "requirements.lock"
STAMP = VENV / "setup-stamp"
PYTHON = VENV / "bin" / "python"
UV = VENV / "bin" / "uv"

# Packages without wheels. A machine without a compiler does without them: only tests need them.
BUILT_HERE = ("python-qpid-proton",)
# What the others are built with (pyspark comes as source only): nothing is fetched for a build, so
# they are there before it, in the lock's version and not in the one that Python's venv brought.
BUILD_TOOLS = ("uv", "setuptools")
# What is in the environment but not in the lock.
NOT_LOCKED = ("pip", "penstock")


def main() -> int:
    # Two makes at once (serve beside test) must not fill one directory together.
    guard = os.open(ROOT / "tools", os.O_RDONLY)
    fcntl.flock(guard, fcntl.LOCK_EX)
    try:
        if not is_up_to_date():
            build_environment()
        # Also where PYTHONDONTWRITEBYTECODE is set: a start that compiles takes twice as long.
        run([PYTHON, "-m", "compileall", "-q", ROOT / "src"], quiet=True)
    except SetupError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def is_up_to_date() -> bool:
    complete = (VENV / "bin" / "penstock").exists() and STAMP.is_file()
    return complete and STAMP.read_text() == environment_digest()


class SetupError(Exception):
    """One sentence for whoever typed `make setup`."""


def environment_digest() -> str:
    own = [ROOT / "pyproject.toml", ROOT / "setup.py", Path(__file__).resolve()]
    sources = [LOCK, *own, *sorted(ROOT.glob("src/**/*.p[yx][xd]"))]
    # A compiler that came later lets more be installed than last time.
    tools = [shutil.which(tool) is not None for tool in ("cc", "gcc")]
    digest = hashlib.sha256(f"{VENV} {tools}".encode())
    for source in sources:
        digest.update(source.read_bytes())
    return digest.hexdigest()


def build_environment() -> None:
    print(
        f"Setting up {VENV} from {LOCK.name} (a minute or two; Spark is half a gigabyte) ...",
        flush=True,
    )
    STAMP.unlink(missing_ok=True)
    create_venv()
    install_python_packages()
    STAMP.write_text(environment_digest())


def install_python_packages() -> None:
    wheels, built_here = split_lock(LOCK.read_text())
    install_entries((wheels[name] for name in BUILD_TOOLS), quiet=True)
    if not install_entries(wheels.values()):
        raise SetupError(
            f"Installing {LOCK.name} into {VENV} failed, for the reason above: "
            "put it right, then run 'make setup' again."
        )
    # With the setuptools of the lock: nothing is fetched for the build.
    if not install("--editable", ROOT):
        raise SetupError(f"Installing Penstock itself into {VENV} failed, for the reason above.")
    if not run([PYTHON, "-c", "import penstock.kernels._publications"], quiet=True):
        print("compiled kernels not built (they need a C compiler): the pure ones serve, slower")
    # Spark finds this one where the machine has no Java; else it starts the machine's own.
    run([PYTHON, "-m", "penstock.spark.java", VENV / "bin"])
    install_built_here(built_here)
    remove_strangers({*wheels, *built_here, *NOT_LOCKED})


def create_venv() -> None:
    pip = VENV / "bin" / "pip"
    # Its first line names the directory it was made in: a copied environment is made anew.
    if pip.exists() and str(VENV) in pip.read_text() and run([pip, "--version"], quiet=True):
        return
    if not run([sys.executable, "-m", "venv", "--clear", VENV], quiet=True):
        raise SetupError(
            f"{sys.executable} cannot make a virtual environment with pip in it: install its venv "
            "package (python3-venv on Debian and Ubuntu), then run 'make setup' again."
        )


def split_lock(text: str) -> tuple[dict[str, str], dict[str, str]]:
    """The lock's entries by package name: those that come as wheels, those that are built here."""
    entries = re.split(r"^(?=[A-Za-z0-9])", text, flags=re.MULTILINE)[1:]
    by_name: dict[str, str] = {}
    for entry in entries:  # several of one name are for several Pythons, as their markers say
        name = canonical(re.split(r"[=\[; ]", entry, maxsplit=1)[0])
        by_name[name] = by_name.get(name, "") + entry
    built_here = {name: by_name.pop(name) for name in BUILT_HERE if name in by_name}
    return by_name, built_here


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


def install_built_here(entries: dict[str, str]) -> None:
    for name, entry in entries.items():
        if not install_entries([entry], quiet=True):
            print(f"{name} not installed (needs a C compiler): its tests will be skipped")


def remove_strangers(known: set[str]) -> None:
    """What an older lock brought would hide a dependency that nobody declares any more."""
    listed = subprocess.run(
        [PYTHON, "-m", "pip", "list", "--format=freeze", "--disable-pip-version-check"],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout.split()
    strangers = {canonical(line.partition("==")[0]) for line in listed} - known
    if strangers:
        run([PYTHON, "-m", "pip", "uninstall", "--quiet", "--yes", *sorted(strangers)])


def run(command: Sequence[str | Path], *, quiet: bool = False) -> bool:
    output = subprocess.DEVNULL if quiet else None
    environment = {**os.environ, "PYTHONUTF8": "1"}
    environment.pop("VIRTUAL_ENV", None)
    result = subprocess.run(command, stdout=output, stderr=output, env=environment, check=False)
    return result.returncode == 0


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    sys.exit(main())
