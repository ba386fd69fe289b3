"""A service runs with allocator settings of its own, its child processes without them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import os, sys
from penstock.io.malloc import restart_with_allocator_settings

begun = open("/proc/self/environ").read()  # of the process as it was executed
is_set = all(setting in begun for setting in ("tcache_count=0", "arena_max=1"))
restart_with_allocator_settings(sys.argv[1:])
print(os.getpid(), is_set, os.environ.get("GLIBC_TUNABLES"), sys.argv[1:])
"""

pytestmark = pytest.mark.skipif(
    not hasattr(os, "confstr") or "CS_GNU_LIBC_VERSION" not in os.confstr_names,
    reason="another C library",
)


@pytest.mark.parametrize("before", [None, "glibc.malloc.mxfast=0"])
def test_program_is_executed_again_with_the_same_arguments(
    tmp_path: Path, before: str | None
) -> None:
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
    environment = {name: text for name, text in os.environ.items() if name != "GLIBC_TUNABLES"}
    if before is not None:
        environment["GLIBC_TUNABLES"] = before
    child = subprocess.Popen(
        [sys.executable, str(file), "serve", "--json"],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    said, _ = child.communicate(timeout=60)
    assert said == f"{child.pid} True {before} ['serve', '--json']\n"


def test_process_that_was_started_with_other_arguments_goes_on(tmp_path: Path) -> None:
    """A test that calls the command in its own process must not be replaced."""
    file = tmp_path / "program.py"
    file.write_text(PROGRAM.replace("sys.argv[1:])\nprint", "['serve'])\nprint"))
    done = subprocess.run(
        [sys.executable, str(file), "pytest"], capture_output=True, text=True, timeout=60
    )
    assert done.stdout.split()[1] == "False"
