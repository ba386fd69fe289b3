"""`make wheel`: the wheel and the source distribution of this checkout.

    python -m tools.wheel [DIRECTORY]        into DIRECTORY, by default dist/

Two builds of one commit on one machine are the same byte for byte: the files are copied to a new
directory, built there (the wheel from the source distribution), and the members of both archives
are written again, sorted, with fixed modes and owners and the time of the commit.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
# Documents, tests and tools are in the repository, not in the distributions.
SOURCES = ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE", "src")
NOT_COPIED = ("__pycache__", "*.egg-info", "*.so", "*.c")
ZIP_EPOCH_S = 315_532_800  # 1980: a zip file has no earlier time
FILE_MODE = 0o644


class BuildError(Exception):
    """One sentence for the caller of `make wheel`."""


def main(arguments: list[str]) -> int:
    directory = Path(arguments[0]).absolute() if arguments else DIST
    started_s = time.monotonic()
    try:
        files = build(directory)
    except BuildError as error:
        print(error, file=sys.stderr)
        return 1
    for file in files:
        print(f"{file}  {file.stat().st_size:,} bytes")
    print(f"built in {time.monotonic() - started_s:.0f} s")
    return 0


def build(directory: Path) -> list[Path]:
    """Build both files into `directory`, instead of what earlier builds left there."""
    epoch_s = commit_time()
    with tempfile.TemporaryDirectory(prefix="penstock-wheel-") as temporary:
        source, built = Path(temporary) / "source", Path(temporary) / "built"
        copy_sources(source)
        run_build(source, built, epoch_s)
        (archive,), (wheel,) = built.glob("*.tar.gz"), built.glob("*.whl")
        directory.mkdir(parents=True, exist_ok=True)
        for old in (*directory.glob("*.tar.gz"), *directory.glob("*.whl")):
            if re.match(r"penstock[-_]", old.name):
                old.unlink()
        return [
            rewrite_wheel(wheel, directory, epoch_s),
            rewrite_archive(archive, directory, epoch_s),
        ]


def commit_time() -> int:
    """The time of HEAD; without git SOURCE_DATE_EPOCH, else the earliest time of a zip file."""
    shown = subprocess.run(
        ["git", "log", "-1", "--format=%ct"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if shown.returncode == 0:
        return int(shown.stdout)
    return max(int(os.environ.get("SOURCE_DATE_EPOCH", "0")), ZIP_EPOCH_S)


def copy_sources(target: Path) -> None:
    """Copy the files without their modes, which depend on the umask of the checkout."""
    ignored = shutil.ignore_patterns(*NOT_COPIED)
    target.mkdir()
    for name in SOURCES:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=ignored, copy_function=shutil.copyfile)
        else:
            shutil.copyfile(source, target / name)


def run_build(source: Path, built: Path, epoch_s: int) -> None:
    """Build the source distribution, and from its files alone the wheel."""
    built.mkdir()
    call_backend("build_sdist", source, built, epoch_s)
    (archive,) = built.iterdir()
    with tarfile.open(archive) as opened:
        opened.extractall(source.parent, filter="data")
    call_backend(
        "build_wheel", source.parent / archive.name.removesuffix(".tar.gz"), built, epoch_s
    )


def call_backend(hook: str, source: Path, built: Path, epoch_s: int) -> None:
    """Call the build backend that pyproject.toml names; its requirements are in .venv already."""
    code = f"import sys; from setuptools import build_meta; build_meta.{hook}(sys.argv[1])"
    done = subprocess.run(
        [sys.executable, "-c", code, built],
        cwd=source,
        env={**os.environ, "SOURCE_DATE_EPOCH": str(epoch_s), "PYTHONHASHSEED": "0"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    output = done.stdout.decode(errors="replace")
    if done.returncode != 0:
        raise BuildError(f"{output[-4000:]}\nBuilding failed, for the reason above.")
    for line in re.findall(r"^.*the compiled kernels were not built.*", output, re.MULTILINE):
        print(line, file=sys.stderr)


def rewrite_archive(file: Path, directory: Path, epoch_s: int) -> Path:
    target = directory / file.name
    with tarfile.open(file) as old, io.BytesIO() as plain:
        with tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as new:
            for member in sorted(old.getmembers(), key=lambda each: each.name):
                if member.isfile():
                    entry = tarfile.TarInfo(member.name)
                    entry.size, entry.mode, entry.mtime = member.size, FILE_MODE, epoch_s
                    new.addfile(entry, old.extractfile(member))
        target.write_bytes(gzip.compress(plain.getvalue(), mtime=epoch_s))
    return target


def rewrite_wheel(file: Path, directory: Path, epoch_s: int) -> Path:
    """Sort the members, the metadata last, and name the C library that the kernels need."""
    with zipfile.ZipFile(file) as old:
        contents = {name: old.read(name) for name in old.namelist()}
    name = file.name
    if platform := linux_platform(contents):
        old_platform = file.stem.rpartition("-")[2]
        name = f"{file.stem.removesuffix(old_platform)}{platform}.whl"
        replace_platform(contents, old_platform, platform)
    target = directory / name
    order = sorted(contents, key=lambda each: (".dist-info/" in each, each))
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as new:
        for member in order:
            entry = zipfile.ZipInfo(member, time.gmtime(epoch_s)[:6])
            entry.external_attr = (0o100000 | FILE_MODE) << 16
            entry.create_system = 3  # Unix, as the mode says
            entry.compress_type = zipfile.ZIP_DEFLATED
            new.writestr(entry, contents[member])
    return target


def linux_platform(contents: dict[str, bytes]) -> str:
    """The tag of PEP 600, `manylinux_2_17_x86_64`, by the newest symbols of glibc in use: an index
    refuses the tag `linux_x86_64`, which names no C library. Empty if no member is an ELF file."""
    libraries = [data for name, data in contents.items() if name.endswith(".so")]
    machine = os.uname().machine
    versions = [
        tuple(int(part) for part in found.groups())
        for library in libraries
        for found in re.finditer(rb"GLIBC_(\d+)\.(\d+)", library)
    ]
    if not versions or sys.platform != "linux":
        return ""
    major, minor = max(versions)
    return f"manylinux_{major}_{max(minor, 17)}_{machine}"


def replace_platform(contents: dict[str, bytes], old: str, new: str) -> None:
    """Write the platform into WHEEL, and the new digest of WHEEL into RECORD."""
    (wheel,) = (name for name in contents if name.endswith(".dist-info/WHEEL"))
    record = wheel.removesuffix("WHEEL") + "RECORD"
    contents[wheel] = contents[wheel].replace(f"-{old}\n".encode(), f"-{new}\n".encode())
    digest = base64.urlsafe_b64encode(hashlib.sha256(contents[wheel]).digest()).rstrip(b"=")
    line = b"%s,sha256=%s,%d" % (wheel.encode(), digest, len(contents[wheel]))
    lines = contents[record].splitlines()
    contents[record] = b"".join(
        (line if each.startswith(wheel.encode() + b",") else each) + b"\n" for each in lines
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
