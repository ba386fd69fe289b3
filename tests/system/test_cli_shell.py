"""`penstock` started as a process: pipes, completion, a terminal, a copy under load."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.conftest import Server, ServerFactory

PENSTOCK = str(Path(sys.executable).with_name("penstock"))
DEADLINE_S = 60


@pytest.fixture(scope="module")
def server(start_session_server: ServerFactory) -> Server:
    return start_session_server("--hub=events:2", "--flush=os", "--log-level=warning")


@pytest.fixture
def environ(server: Server, tmp_path: Path) -> dict[str, str]:
    return clean(tmp_path) | {"PENSTOCK_DATA": str(server.data)}


def clean(folder: Path) -> dict[str, str]:
    kept = {name: v for name, v in os.environ.items() if not name.startswith("PENSTOCK_")}
    path = f"{Path(PENSTOCK).parent}:{kept['PATH']}"
    return kept | {"PATH": path, "XDG_CONFIG_HOME": str(folder), "TERM": "xterm-256color"}


def ran(
    command: list[str], environ: dict[str, str], code: int = 0
) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        command, capture_output=True, text=True, env=environ, timeout=DEADLINE_S, check=False
    )
    assert done.returncode == code, (done.stdout, done.stderr)
    return done


def test_pipes_hold_data_alone(environ: dict[str, str]) -> None:
    script = "set -o pipefail; penstock hub list -o jsonl | head -1"
    first = ran(["bash", "-c", script], environ)
    assert json.loads(first.stdout)["name"] == "events"
    assert first.stderr == ""
    created = ran([PENSTOCK, "hub", "create", "piped", "--if-absent"], environ)
    assert created.stdout == ""
    assert "Created" in created.stderr or "exists already" in created.stderr
    ran(["bash", "-c", "penstock hub delete piped < /dev/null"], environ, code=2)


def test_reader_that_leaves_is_no_trouble(environ: dict[str, str]) -> None:
    done = ran(["bash", "-c", "penstock help --all | true; echo ${PIPESTATUS[0]}"], environ)
    assert "Traceback" not in done.stderr


def test_health_waits_for_a_service_that_comes(start_server: ServerFactory, tmp_path: Path) -> None:
    data = tmp_path / "late"
    with subprocess.Popen(
        [PENSTOCK, "health", "--data", str(data), "--wait", "60s"],
        env=clean(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as waiting:
        start_server(data=data)
        out, err = waiting.communicate(timeout=DEADLINE_S)
        assert (waiting.returncode, out) == (0, b""), err


# --- completion -----------------------------------------------------------------------------------


def completed(environ: dict[str, str], *lines: str) -> list[list[str]]:
    """What bash would offer at the end of each line, by the script that we print."""
    script = 'eval "$(penstock completion bash)"\n'
    for line in lines:
        script += f"COMP_WORDS=({line}); COMP_CWORD=$(( ${{#COMP_WORDS[@]}} - 1 ))\n"
        script += "_penstock_completion penstock; echo ${COMPREPLY[@]}\n"
    return [line.split() for line in ran(["bash", "-c", script], environ).stdout.splitlines()]


def test_shell_completes_commands_options_and_names(environ: dict[str, str]) -> None:
    assert completed(
        environ,
        "penstock na",
        "penstock hub par",
        "penstock hub show --names",
        "penstock group seek events '$De'",
    ) == [["namespace"], ["partitions"], ["--namespace"], ["$Default"]]


def test_completion_without_a_service_is_silent(tmp_path: Path) -> None:
    nobody = clean(tmp_path) | {"PENSTOCK_DATA": str(tmp_path / "nobody")}
    assert completed(nobody, "penstock hub show x") == [[]]


# --- a terminal -----------------------------------------------------------------------------------


class Terminal:
    """A command on a terminal of so many columns and rows."""

    def __init__(self, *words: str, environ: dict[str, str], columns: int, rows: int = 30) -> None:
        self.shown = ""
        own, its = pty.openpty()
        fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self._own = own
        self.process = subprocess.Popen(
            [PENSTOCK, *words], stdin=its, stdout=its, stderr=its, env=environ, close_fds=True
        )
        os.close(its)

    def until(self, text: str, times: int = 1) -> None:
        """Read until the text was shown so often."""
        deadline = time.monotonic() + DEADLINE_S
        while self.shown.count(text) < times:
            left = deadline - time.monotonic()
            assert left > 0, self.shown
            ready, _, _ = select.select([self._own], [], [], left)
            assert ready, self.shown
            assert self._read(), self.shown

    def type(self, text: str) -> None:
        os.write(self._own, text.encode())

    def end(self) -> int:
        """What is left, and the exit code."""
        while self._read():
            pass
        code = self.process.wait(DEADLINE_S)
        os.close(self._own)
        return code

    def lines(self) -> list[str]:
        """Everything that was shown, without colours and cursor moves."""
        text = re.sub(r"\r\x1b\[2K|\x1b\[1A\x1b\[2K", "\n", self.shown)  # over what was there
        text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
        return [line.rstrip() for line in text.replace("\r", "").splitlines()]

    def _read(self) -> bool:
        try:
            found = os.read(self._own, 65536)
        except OSError:  # EIO: nobody writes to it any more
            return False
        self.shown += found.decode(errors="replace")
        return bool(found)


@pytest.mark.parametrize("columns", [80, 120])
def test_lag_lives_on_a_terminal_until_ctrl_c(environ: dict[str, str], columns: int) -> None:
    words = ("group", "lag", "events", "--watch", "--interval", "200ms")
    terminal = Terminal(*words, environ=environ, columns=columns)
    terminal.until("nothing known to be behind", times=3)  # three looks, each over the last
    terminal.process.send_signal(signal.SIGINT)
    assert terminal.end() == 0
    assert "\x1b[?25h" in terminal.shown  # the cursor is back
    assert "\x1b[1A" in terminal.shown  # drawn over, not below each other
    lines = terminal.lines()
    assert max(map(len, lines)) <= columns
    heads = [line for line in lines if line.startswith("hub ")]
    assert ("checkpoint" in heads[0]) == (columns == 120)
    assert any(line.startswith("Lag of penstock/events") for line in lines)


@pytest.mark.parametrize(("typed", "code"), [("doomed\n", 0), ("domed\n", 1)])
def test_terminal_is_asked_to_type_the_name(environ: dict[str, str], typed: str, code: int) -> None:
    ran([PENSTOCK, "hub", "create", "doomed", "--if-absent"], environ)
    terminal = Terminal("hub", "delete", "doomed", environ=environ, columns=80)
    terminal.until("Type 'doomed' to continue")
    terminal.type(typed)
    assert terminal.end() == code
    assert ("Deleted" if code == 0 else "Nothing was changed") in terminal.shown


# --- a copy under load ----------------------------------------------------------------------------


@pytest.fixture
def load(server: Server, environ: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    """Events are published all the while."""
    words = [PENSTOCK, "bench", "send", "--hub", "events", "--rate", "2000", "--batch", "50"]
    with subprocess.Popen(
        [*words, "--duration", "600"],
        env=environ,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        yield process
        process.kill()


def count_of(rows: str) -> int:
    return sum(int(row["events"]) for row in json.loads(rows))


@pytest.mark.usefixtures("load")
def test_copy_made_under_load_holds_what_was_acknowledged(
    environ: dict[str, str],
    start_server: ServerFactory,
    tmp_path: Path,
) -> None:
    words = ["bench", "send", "--hub", "events", "--count", "500", "--batch", "10"]
    ran([PENSTOCK, *words, "--duration", "30"], environ)
    partitions = [PENSTOCK, "hub", "partitions", "events", "-o", "json"]
    before = count_of(ran(partitions, environ).stdout)
    copy, data = tmp_path / "copy", tmp_path / "restored"
    made = json.loads(ran([PENSTOCK, "backup", str(copy), "-o", "json"], environ).stdout)[0]
    assert made["damage"] == 0
    assert made["events"] >= before >= 500
    ran([PENSTOCK, "restore", str(copy), "--data", str(data), "--dry-run"], environ)
    assert not data.exists()
    done = ran([PENSTOCK, "restore", str(copy), "--data", str(data)], environ)
    assert "every event can be read" in done.stderr
    again = start_server("--flush=os", data=data)
    there = environ | {"PENSTOCK_DATA": str(data)}
    assert count_of(ran(partitions, there).stdout) == made["events"]
    assert "damaged" not in again.log.read_text()
    refused = ran([PENSTOCK, "restore", str(copy), "--data", str(data)], environ, code=1)
    assert "not empty" in refused.stderr
