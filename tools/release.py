"""`make release`: check that this commit can be released, and build what would be uploaded.

    python -m tools.release              checks and builds; uploads nothing
    python -m tools.release --upload     then uploads dist/ with uv, which asks for the credentials

It refuses when files differ from the commit, when the version's tag is on another commit, when
CHANGELOG.md does not begin with the version, when the name belongs to another project on the index
that pip is configured for, or when the index cannot be asked.
"""

from __future__ import annotations

import argparse
import email.parser
import os
import re
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Callable, Sequence
from email.message import Message
from pathlib import Path

from tools import wheel

import penstock

ROOT = Path(__file__).resolve().parent.parent
NAME: str = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["name"]
TEST = "tests/system/test_wheel.py"
_IDENTITY = ("Author", "Author-email", "Home-page", "Project-URL")


class ReleaseError(Exception):
    """Why this commit cannot be released, and what to do."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.release")
    parser.add_argument("--upload", action="store_true", help="upload dist/ when all is well")
    options = parser.parse_args(arguments)
    try:
        check_tag(is_needed=options.upload)
        files = check_and_build()
        if options.upload:
            upload(files)
    except (ReleaseError, wheel.BuildError) as error:
        print(f"Not released: {error}", file=sys.stderr)
        return 1
    tag = f"v{penstock.__version__}"
    if not options.upload:
        print(f"Ready. Next: git tag -a {tag} -m 'Penstock {penstock.__version__}'")
        print("             make release ARGS=--upload")
    return 0


def check_and_build() -> list[Path]:
    version = penstock.__version__
    _step("files are those of the commit", check_tree)
    _step(f"CHANGELOG.md begins with {version}", check_changelog)
    _step(f"the name {NAME} on the index", lambda: print(f"   {check_name(NAME, own_identity())}"))
    files: list[Path] = []
    _step("build", lambda: files.extend(wheel.build(wheel.DIST)))
    check_kernels(files[0])
    for file in files:
        print(f"   {file.name}  {file.stat().st_size:,} bytes")
    _step("the wheel's tests", run_wheel_test)
    return files


def _step(what: str, action: Callable[[], object]) -> None:
    print(f"-- {what}", flush=True)
    action()


def check_tree(root: Path = ROOT) -> None:
    done = _run("git", "status", "--porcelain", cwd=root)
    if done.returncode != 0:
        raise ReleaseError("this is no git checkout.")
    if done.stdout.strip():
        raise ReleaseError(f"commit or remove these files first:\n{done.stdout.rstrip()}")


def check_tag(root: Path = ROOT, version: str = penstock.__version__, *, is_needed: bool) -> None:
    tag = f"v{version}"
    tagged = _run("git", "rev-parse", "--verify", "--quiet", f"{tag}^{{commit}}", cwd=root)
    if tagged.returncode == 0:
        if tagged.stdout != _run("git", "rev-parse", "HEAD", cwd=root).stdout:
            raise ReleaseError(f"the tag {tag} is on another commit.")
    elif is_needed:
        raise ReleaseError(f"there is no tag {tag}: git tag -a {tag} -m 'Penstock {version}'")


def check_changelog(root: Path = ROOT, version: str = penstock.__version__) -> None:
    text = (root / "CHANGELOG.md").read_text()
    heading = re.search(r"^## +(\S+)", text, re.MULTILINE)
    newest = heading[1] if heading else "nothing"
    if newest != version:
        raise ReleaseError(
            f"the version is {version} (src/penstock/__init__.py), and CHANGELOG.md begins with "
            f"{newest}."
        )


def own_identity() -> dict[str, list[str]]:
    """What the metadata of our distribution says of the project."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = [author["name"] for author in project["authors"]]
    urls = [f"{label}, {url}" for label, url in project.get("urls", {}).items()]
    found = {"Author": names, "Project-URL": urls}
    return {key: sorted(values) for key, values in found.items() if values}


def check_name(name: str, identity: dict[str, list[str]]) -> str:
    """What the index has under the name. Raises ReleaseError unless that is nothing or ours."""
    with tempfile.TemporaryDirectory() as temporary:
        done = _ask_index(name, temporary)
        files = list(Path(temporary).iterdir())
        if done.returncode == 0 and len(files) == 1:
            metadata = read_metadata(files[0])
            theirs = {key: sorted(metadata.get_all(key, [])) for key in _IDENTITY}
            theirs = {key: values for key, values in theirs.items() if values}
            if theirs != identity:
                raise ReleaseError(
                    f"the name {name} belongs to another project on pip's index: "
                    f"{metadata['Summary']!r}, {theirs}. Ours says {identity}."
                )
            return f"ours, version {metadata['Version']}"
    return _explain_failure(name, done.stdout)


def _ask_index(name: str, directory: str) -> subprocess.CompletedProcess[str]:
    """Download a wheel through pip, which knows the index; a source archive would be executed.
    Without --find-links: those are not the index."""
    environ = {key: value for key, value in os.environ.items() if key != "PIP_FIND_LINKS"}
    environ |= {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_CACHE_DIR": "1"}
    command = (sys.executable, "-m", "pip", "download", "-vv", "--retries", "1", "--pre")
    flags = ("--no-deps", "--ignore-requires-python", "--only-binary", ":all:", "--dest", directory)
    return _run(*command, *flags, name, env=environ)


def _explain_failure(name: str, output: str) -> str:
    """pip has the same error for a name that does not exist and for an index out of reach; its
    verbose output tells them apart. Whatever is not clear is a refusal."""
    if re.search(r"(Skipping|Found) link.*\.(whl|tar\.gz|zip)\b", output):
        raise ReleaseError(
            f"the name {name} exists on pip's index, without a wheel for this Python: whose it is "
            "cannot be checked here."
        )
    problems = re.findall(r"Could not fetch URL .*", output)
    if problems and all(": 404 Client Error" in problem for problem in problems):
        return "not taken"
    last = "\n".join(output.strip().splitlines()[-3:])
    raise ReleaseError(f"pip's index could not be asked for {name}:\n{last}")


def read_metadata(file: Path) -> Message:
    with zipfile.ZipFile(file) as archive:
        (name,) = (
            each for each in archive.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", each)
        )
        return email.parser.BytesParser().parsebytes(archive.read(name))


def check_kernels(file: Path) -> None:
    with zipfile.ZipFile(file) as archive:
        if not any(name.endswith((".so", ".pyd")) for name in archive.namelist()):
            raise ReleaseError(f"{file.name} has no compiled kernels: install a C compiler.")


def run_wheel_test() -> None:
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", TEST], cwd=ROOT, check=False)
    if done.returncode != 0:
        raise ReleaseError(f"{TEST} failed.")


def upload(files: Sequence[Path]) -> None:
    uv = Path(sys.executable).with_name("uv")
    if subprocess.run([uv, "publish", *files], check=False).returncode != 0:
        raise ReleaseError("uv did not upload the files, for the reason above.")


def _run(
    *command: str, cwd: Path = ROOT, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=cwd,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


if __name__ == "__main__":
    sys.exit(main())
