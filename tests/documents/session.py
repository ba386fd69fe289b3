"""Runs the blocks of one page as its reader would: one directory, one shell, one service.

`sh` blocks share their directory and exported variables, as in one terminal; the first command that
fails fails the block. A `python` block is a program of its own. Spark's Python and SQL blocks share
one interpreter, as in a PySpark shell. Default ports in the page become free ones.
"""

from __future__ import annotations

import json
import os
import random
import re
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.documents.page import Block
from tests.documents.programs import (
    KILLED,
    BlockFailed,
    Interpreter,
    Output,
    Program,
    matches,
    wait_until,
)

PORTS = {"amqp": 5672, "amqps": 5671, "https": 8443, "admin": 5300, "portal": 5380}
BLOCK_DEADLINE_S = 60.0
SPARK_DEADLINE_S = 300.0
START_DEADLINE_S = 45.0
OUTPUT_DEADLINE_S = 30.0
DATA = "penstock-data"  # as `penstock serve` chooses it
# Below the ports that the system gives to clients: none of these is taken in passing.
_PORT_RANGE = range(20_000, 32_000)
_DEFAULT_PORT = re.compile(rf"\b({'|'.join(map(str, PORTS.values()))})\b")
_STRING = "PENSTOCK_CONNECTION_STRING"
_EPILOGUE = """trap 'code=$?; env -0 > "{0}"; pwd > "{1}"; exit $code' EXIT\n"""
# The shell waits for its command, which gets the same signal, and ends after it.
_BACKGROUND = "trap 'exit 143' TERM\n"
_SQL = """
import penstock.spark
for statement in {0!r}.split(";"):
    if statement.strip():
        penstock.spark.session().sql(statement).show(truncate=False)
"""


class Session:
    """The reader of one page; as a context manager it ends everything that the page started."""

    def __init__(
        self,
        directory: Path,
        blocks: list[Block],
        *,
        with_spark: bool = False,
        needs_service: bool = True,
        block_deadline_s: float = BLOCK_DEADLINE_S,
    ) -> None:
        self._home, self._logs = directory / "home", directory / "logs"
        self._directory = directory / "page"
        for folder in (self._home, self._logs, self._directory):
            folder.mkdir(parents=True)
        self._blocks = [block for block in blocks if with_spark or not block.is_spark]
        self._deadline_s = block_deadline_s
        self.ports = choose_ports()
        self._environ = self._initial_environment()
        self._programs: list[Program] = []
        self._interpreter: Interpreter | None = None
        self._awaited: list[tuple[Block, Output]] = []
        self._service: Program | None = None
        programs = [block for block in self._blocks if block.is_run]
        # A page that starts a service itself needs no other.
        self._needs_service = needs_service and not any(map(_is_serve, programs))
        own = re.compile(rf"^\s*(?:export )?{_STRING}=", re.MULTILINE)
        self._sets_string = any(own.search(block.text) for block in programs)

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        for program in reversed(self._programs):
            program.stop()

    def run(self) -> None:
        """Every block in the page's order; raises BlockFailed."""
        last: Output | None = None
        for block in self._blocks:
            if block.is_output:
                assert last is not None, "page.py refuses such a page"
                self._expect(block, last)
            elif "skip" in block.directives:
                continue
            elif block.file is not None:
                target = self._directory / block.file
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(self._localize(block.text))
            elif block.is_run:
                last = self._run(block)
        for block, output in self._awaited:
            self._await_output(block, output)
        self._check_background()

    def _initial_environment(self) -> dict[str, str]:
        kept = {name: v for name, v in os.environ.items() if not name.startswith("PENSTOCK_")}
        ports = {f"PENSTOCK_{name.upper()}_PORT": str(port) for name, port in self.ports.items()}
        return kept | {
            "HOME": str(self._home),
            "XDG_CONFIG_HOME": str(self._home / ".config"),
            "PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])),
            "PYTHONUNBUFFERED": "1",
            "COLUMNS": "120",
            **ports,
        }

    def _localize(self, text: str) -> str:
        """The page's text with the ports of this session."""
        actual = {str(default): str(self.ports[name]) for name, default in PORTS.items()}
        return _DEFAULT_PORT.sub(lambda match: actual[match[1]], text)

    # --- blocks -----------------------------------------------------------------------------------

    def _run(self, block: Block) -> Output:
        if self._needs_service and self._service is None:
            self._start_service()
        if block.is_spark and block.language in ("python", "sql"):
            return self._interpret(block)
        if block.language == "python":
            return self._run_program(block, [sys.executable, str(self._write(block))])
        return self._run_shell(block)

    def _run_shell(self, block: Block) -> Output:
        script, environ, directory = (
            self._logs / f"line-{block.line}.{kind}" for kind in ("sh", "environ", "directory")
        )
        is_background = "background" in block.directives
        prologue = _BACKGROUND if is_background else _EPILOGUE.format(environ, directory)
        script.write_text(prologue + self._localize(block.text))
        program = self._run_program(block, ["bash", "-e", str(script)])
        if environ.exists() and directory.exists():
            pairs = (pair.partition("=") for pair in environ.read_text().split("\0") if pair)
            self._environ = {name: value for name, _, value in pairs}
            self._directory = Path(directory.read_text().rstrip("\n"))
        return program

    def _run_program(self, block: Block, command: list[str]) -> Output:
        program = self._start(self._output(block), command)
        if program.is_background:
            if _is_serve(block):
                self._await_ready(program, self._data_of(block))
            return program
        deadline = SPARK_DEADLINE_S if block.is_spark else self._deadline_s
        code = program.wait(deadline)
        if code is None:
            raise program.failure(f"did not end within {deadline:g} s", self._service)
        if code != 0:
            raise program.failure(f"ended with exit code {code}", self._service)
        return program

    def _interpret(self, block: Block) -> Output:
        if self._interpreter is None:
            self._interpreter = Interpreter(self._logs, self._environ, self._directory)
            self._programs.append(self._interpreter.program)
        output = self._output(block)
        code = self._interpreter.run(
            self._write(block), output, self._environ, self._directory, SPARK_DEADLINE_S
        )
        if code is None:
            raise output.failure(f"did not end within {SPARK_DEADLINE_S:.0f} s", self._service)
        if code != 0:
            raise output.failure("raised an exception", self._service)
        return output

    def _output(self, block: Block) -> Output:
        return Output(block.place, block, self._logs / f"line-{block.line}")

    def _write(self, block: Block) -> Path:
        text = self._localize(block.text)
        file = self._logs / f"line-{block.line}.py"
        file.write_text(_SQL.format(text) if block.language == "sql" else text)
        return file

    def _start(self, output: Output, command: list[str]) -> Program:
        program = Program(output, command, self._environ, self._directory)
        self._programs.append(program)
        return program

    # --- the service ------------------------------------------------------------------------------

    def _start_service(self) -> None:
        """The page runs blocks and starts no service itself: it gets one."""
        wants_portal = any(str(PORTS["portal"]) in block.text for block in self._blocks)
        data = self._directory / DATA
        command = ["penstock", "serve", "--json", "--data", str(data), "--log-level", "warning"]
        command += [] if wants_portal else ["--no-portal"]
        self._service = self._start(Output("the service", None, self._logs / "service"), command)
        self._await_ready(self._service, data)

    def _data_of(self, block: Block) -> Path:
        named = re.search(r"--data[ =](\S+)", block.text)
        return self._directory / (named[1] if named else DATA)

    def _await_ready(self, program: Program, data: Path) -> None:
        """Then later blocks find the service in their environment."""
        file = data / "runtime.json"

        def is_ready() -> bool:
            facts = _read_json(file)
            return "pid" in facts and _process_group(facts["pid"]) == program.process.pid

        if not wait_until(is_ready, START_DEADLINE_S, program.process):
            raise program.failure("did not start the service in time")
        facts = _read_json(file)
        self._environ |= {
            "PENSTOCK_DATA": facts["data"],
            "PENSTOCK_ADMIN_URL": facts["admin"],
            "PENSTOCK_ADMIN_TOKEN": facts["admin_token"],
        }
        if not self._sets_string:
            self._environ[_STRING] = facts["emulator_connection_string"]

    # --- what blocks print ------------------------------------------------------------------------

    def _expect(self, expected: Block, output: Output) -> None:
        """Compare now; what runs in the background may print until the page ends."""
        if output.is_background:
            self._awaited.append((expected, output))
        elif not matches(self._localize(expected.text), output.shown()):
            raise self._wrong_output(expected, output)

    def _await_output(self, expected: Block, output: Output) -> None:
        text = self._localize(expected.text)
        if not wait_until(lambda: matches(text, output.shown()), OUTPUT_DEADLINE_S):
            raise self._wrong_output(expected, output)

    def _wrong_output(self, expected: Block, output: Output) -> BlockFailed:
        return output.failure(
            f"printed something else than {expected.place} says:\n{self._localize(expected.text)}"
        )

    def _check_background(self) -> None:
        """A program in the background runs, ended well, or was killed by the page."""
        for program in self._programs:
            if program.is_background and program.process.poll() not in (None, 0, *KILLED):
                raise program.failure(f"ended with exit code {program.process.returncode}")


def choose_ports() -> dict[str, int]:
    """A free port for each default one."""
    chosen: dict[str, int] = {}
    candidates = iter(random.sample(_PORT_RANGE, len(_PORT_RANGE)))
    for name in PORTS:
        chosen[name] = next(port for port in candidates if _is_free(port))
    return chosen


def _is_free(port: int) -> bool:
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


def _is_serve(block: Block) -> bool:
    is_background = "background" in block.directives
    return is_background and re.search(r"\bpenstock serve\b", block.text) is not None


def _read_json(file: Path) -> Mapping[str, Any]:
    try:
        facts: dict[str, Any] = json.loads(file.read_text())
    except (OSError, ValueError):  # not there, or not complete yet
        return {}
    return facts


def _process_group(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return None
