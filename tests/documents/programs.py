"""Programs that a page starts: each with its own process group, its output in files, a deadline."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.documents.page import Block

STOP_DEADLINE_S = 30.0
SHOWN_CHARACTERS = 6000
KILLED = (-signal.SIGKILL, 128 + signal.SIGKILL)
_POLL_S = 0.02
# Runs files in one namespace. A line of JSON names a file, its surroundings and its output; the
# exit code of the block goes into a file.
_INTERPRETER = """
import json, os, sys, traceback
for line in sys.stdin:
    block = json.loads(line)
    for fd, name in enumerate(("out", "err"), 1):
        os.dup2(os.open(block[name], os.O_WRONLY | os.O_CREAT | os.O_APPEND), fd)
    os.chdir(block["directory"])
    os.environ.update(block["environ"])
    code = "0"
    try:
        with open(block["file"]) as file:
            exec(compile(file.read(), block["file"], "exec"), sys.modules["__main__"].__dict__)
    except BaseException:
        traceback.print_exc()
        code = "1"
    sys.stdout.flush(), sys.stderr.flush()
    with open(block["code"] + ".new", "w") as file:
        file.write(code)
    os.rename(block["code"] + ".new", block["code"])
"""


class BlockFailed(Exception):
    """What went wrong, with the page, the line, the block and its output."""


class Output:
    """What a block printed; `stem` is the path of its files without their ending."""

    def __init__(self, place: str, block: Block | None, stem: Path) -> None:
        self.place = place
        self.block = block
        self.stem = stem
        self.out = stem.with_name(stem.name + ".out")
        self.err = stem.with_name(stem.name + ".err")

    @property
    def is_background(self) -> bool:
        return self.block is None or "background" in self.block.directives

    def shown(self) -> str:
        """Its standard output; without any, its standard error."""
        return _read(self.out) or _read(self.err)

    def failure(self, what: str, beside: Output | None = None) -> BlockFailed:
        """`beside` is the service, whose log helps."""
        parts = [f"{self.place}: the block {what}"]
        if self.block is not None:
            parts.append(f"--- block\n{self.block.text.rstrip()}")
        for title, text in (("stdout", _read(self.out)), ("stderr", _read(self.err))):
            parts.append(f"--- {title}\n{text.rstrip()[-SHOWN_CHARACTERS:]}")
        if beside is not None:
            parts.append(f"--- log of the service\n{_read(beside.err)[-SHOWN_CHARACTERS:]}")
        return BlockFailed("\n".join(parts))


class Program(Output):
    """A process; `stop()` ends it with all that it started."""

    def __init__(
        self,
        output: Output,
        command: list[str],
        environ: dict[str, str],
        directory: Path,
        *,
        has_stdin: bool = False,
    ) -> None:
        super().__init__(output.place, output.block, output.stem)
        with self.out.open("wb") as out, self.err.open("wb") as err:
            self.process = subprocess.Popen(
                command,
                cwd=directory,
                env=environ,
                stdin=subprocess.PIPE if has_stdin else subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                text=True,
                start_new_session=True,
            )

    def wait(self, deadline_s: float) -> int | None:
        """Its exit code, or None if it runs longer."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.process.wait(deadline_s)
        return None

    def stop(self) -> int:
        """End of input or SIGTERM, then SIGKILL to what is left of the group; the exit code."""
        if self.process.stdin is not None:
            self.process.stdin.close()
            self.wait(STOP_DEADLINE_S)
        if self.process.poll() is None:
            self._signal(signal.SIGTERM)
            self.wait(STOP_DEADLINE_S)
        self._signal(signal.SIGKILL)
        return self.process.wait(STOP_DEADLINE_S)

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)


class Interpreter:
    """One Python in which several blocks run, as in a PySpark shell."""

    def __init__(self, logs: Path, environ: dict[str, str], directory: Path) -> None:
        command = [sys.executable, "-c", _INTERPRETER]
        output = Output("interpreter", None, logs / "interpreter")
        self.program = Program(output, command, environ, directory, has_stdin=True)

    def run(
        self,
        file: Path,
        output: Output,
        environ: dict[str, str],
        directory: Path,
        deadline_s: float,
    ) -> int | None:
        """The block's exit code, or None if it takes longer."""
        code = file.with_suffix(".code")
        block = {
            "file": str(file),
            "code": str(code),
            "out": str(output.out),
            "err": str(output.err),
            "environ": environ,
            "directory": str(directory),
        }
        stdin = self.program.process.stdin
        assert stdin is not None
        stdin.write(json.dumps(block) + "\n")
        stdin.flush()
        if not wait_until(code.exists, deadline_s, self.program.process):
            return None
        return int(code.read_text())


def wait_until(
    condition: Callable[[], bool], deadline_s: float, process: subprocess.Popen[str] | None = None
) -> bool:
    """Whether the condition came true in time; a process that ends ends the wait."""
    end = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() > end or (process is not None and process.poll() is not None):
            return condition()
        time.sleep(_POLL_S)
    return True


def matches(expected: str, printed: str) -> bool:
    """`...` stands for any text; blanks at the ends of lines do not count."""
    parts = (re.escape(part) for part in _trim(expected).split("..."))
    return re.fullmatch(".*".join(parts), _trim(printed), re.DOTALL) is not None


def _trim(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


def _read(file: Path) -> str:
    return file.read_text(errors="replace") if file.exists() else ""
