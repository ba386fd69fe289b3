"""Record the command line on a terminal: docs/images/recordings/*.txt, what a person sees, as
plain text; and docs/images/kill-9.svg, which moves.

    .venv/bin/python tools/record_cli.py [NAME...]

Each recording starts a service of its own on free ports, runs its commands on a pseudo-terminal of
100 columns, and keeps the screen whenever it changed, at most a few times a second.
"""

from __future__ import annotations

import errno
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
import tempfile
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

ROOT = Path(__file__).resolve().parents[1]
RECORDINGS = ROOT / "docs" / "images" / "recordings"
PENSTOCK = Path(sys.executable).parent / "penstock"
COLUMNS, ROWS = 100, 24
FRAME_S = 1.0  # no more frames than a reader wants
DEADLINE_S = 60.0
_SEQUENCE = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])|\x1b\][^\x07]*\x07|\x1b.", re.DOTALL)


class Screen:
    """As much of a terminal as our output needs: lines, cursor up, erase."""

    def __init__(self, *, columns: int = COLUMNS, rows: int = ROWS) -> None:
        self._columns, self._rows = columns, rows
        self._lines = [""]
        self._row = self._column = 0

    @property
    def text(self) -> str:
        shown = [line.rstrip() for line in self._lines]
        while shown and not shown[-1]:
            shown.pop()
        return "\n".join(shown[-self._rows :])

    def feed(self, text: str) -> None:
        position = 0
        while position < len(text):
            found = _SEQUENCE.match(text, position)
            if found is not None:
                self._obey(found[1] or "", found[2] or "")
                position = found.end()
            else:
                self._put(text[position])
                position += 1

    def _obey(self, number: str, command: str) -> None:
        count = int(number) if number.isdigit() else 1
        if command == "A":
            self._row = max(0, self._row - count)
        elif command == "B":
            self._down(count)
        elif command == "C":
            self._column += count
        elif command == "K":
            keep = "" if number == "2" else self._lines[self._row][: self._column]
            self._lines[self._row] = keep
        elif command == "J":
            del self._lines[self._row + 1 :]
        elif command in "HG":
            self._column = 0

    def _put(self, character: str) -> None:
        if character == "\r":
            self._column = 0
        elif character == "\n":
            self._down(1)
            self._column = 0
        elif character >= " ":
            if self._column >= self._columns:
                self._down(1)
                self._column = 0
            line = self._lines[self._row].ljust(self._column)
            self._lines[self._row] = line[: self._column] + character + line[self._column + 1 :]
            self._column += 1

    def _down(self, count: int) -> None:
        self._row += count
        while len(self._lines) <= self._row:
            self._lines.append("")


class Recording:
    """The frames of one command after the other."""

    def __init__(self, environ: dict[str, str], folder: Path) -> None:
        self._environ = environ
        self._folder = folder
        self.parts: list[str] = []

    def run(
        self,
        shown: str,
        *,
        seconds: float | None = None,
        meanwhile: Callable[[float], None] | None = None,
    ) -> None:
        """A command line; Ctrl-C after so many seconds. `meanwhile` is called with the time."""
        master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        process = subprocess.Popen(
            ["sh", "-c", f"exec {shown}" if "|" not in shown else shown],
            stdin=subprocess.DEVNULL,
            stdout=slave,
            stderr=slave,
            env=self._environ,
            cwd=self._folder,
            start_new_session=True,
        )
        os.close(slave)
        self.parts.append(f"$ {shown}")
        try:
            self._watch(master, process, seconds, meanwhile)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            code = process.wait(DEADLINE_S)
            os.close(master)
        self.parts.append(f"(exit code {code})")

    def _watch(
        self,
        master: int,
        process: subprocess.Popen[bytes],
        seconds: float | None,
        meanwhile: Callable[[float], None] | None,
    ) -> None:
        screen, begun, last, framed = Screen(), time.monotonic(), "", -1.0
        pending, is_stopped = b"", False
        while True:
            now = time.monotonic() - begun
            if now > DEADLINE_S:
                raise TimeoutError("the command did not end")
            if seconds is not None and now > seconds and not is_stopped:
                os.killpg(process.pid, signal.SIGINT)
                is_stopped = True
            if meanwhile is not None:
                meanwhile(now)
            ready, _, _ = select.select([master], [], [], 0.05)
            if ready:
                data = read_terminal(master)
                if not data:
                    break
                whole, pending = characters(pending + data)
                screen.feed(whole)
            if screen.text != last and now - framed >= FRAME_S and not is_stopped:
                self._frame(now, screen.text)
                last, framed = screen.text, now
        if screen.text != last:
            self._frame(time.monotonic() - begun, screen.text)

    def _frame(self, seconds: float, text: str) -> None:
        if text:
            self.parts.append(f"--- {seconds:.1f} s " + "-" * 40 + f"\n{text}")

    def save(self, name: str) -> None:
        RECORDINGS.mkdir(parents=True, exist_ok=True)
        (RECORDINGS / f"{name}.txt").write_text("\n".join(self.parts) + "\n")


def read_terminal(master: int) -> bytes:
    """What a pseudo-terminal shows; nothing after its end."""
    try:
        return os.read(master, 65536)
    except OSError as error:
        if error.errno == errno.EIO:  # nobody writes any more
            return b""
        raise


def characters(data: bytes) -> tuple[str, bytes]:
    """Whole characters, and what of the next one is there."""
    for left in range(4):
        end = len(data) - left
        try:
            return data[:end].decode(), data[end:]
        except UnicodeDecodeError:
            continue
    return data.decode(errors="replace"), b""


@contextmanager
def service(folder: Path, *hubs: str) -> Iterator[dict[str, str]]:
    """The environment of a user whose service it is."""
    ports = [f"--{door}-port=0" for door in ("amqp", "amqps", "https", "admin")]
    command = [str(PENSTOCK), "serve", "--json", "--data", str(folder / "data"), *ports]
    command += [f"--hub={hub}" for hub in hubs]
    with (folder / "serve.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log)
    with process:
        assert process.stdout is not None
        json.loads(process.stdout.readline())
        clean = {name: v for name, v in os.environ.items() if not name.startswith("PENSTOCK_")}
        clean["PATH"] = f"{PENSTOCK.parent}:{clean.get('PATH', '')}"
        own = {"PENSTOCK_DATA": str(folder / "data"), "TERM": "xterm-256color", "LANG": "C.UTF-8"}
        try:
            yield clean | own | {"COLUMNS": str(COLUMNS), "LINES": str(ROWS)}
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(DEADLINE_S)


# --- what is recorded -----------------------------------------------------------------------------


def record_send(recording: Recording, folder: Path, environ: dict[str, str]) -> None:
    lines = "".join(
        f'{{"device": "d{n % 40}", "temperature": {n % 35}}}\n' for n in range(1_000_000)
    )
    (folder / "readings.jsonl").write_text(lines)
    recording.run("penstock send orders --lines readings.jsonl")
    recording.run("penstock send orders --text hello --repeat 2500 --rate 1000/s -k customer-7")
    (folder / "large.bin").write_bytes(bytes(3_000_000))
    recording.run("penstock send orders large.bin")


def record_tail(recording: Recording, folder: Path, environ: dict[str, str]) -> None:
    def send(*words: str, data: bytes = b"") -> None:
        command = [str(PENSTOCK), "send", "orders", "-q", *words]
        subprocess.run(command, input=data, env=environ, check=True, timeout=DEADLINE_S)

    send("-k", "customer-7", "-t", '{"order": 1, "total": 12.5}', "-P", "kind=new")
    send("-k", "customer-9", "-t", '{"order": 2, "total": 99}')
    send("-p", "1", data=b"\x1b]0;owned\x07\x1b[2J\x1b[31mhostile \xff bytes\r\n")
    due = [(2.0, '{"order": 3, "total": 7}'), (3.0, "Grüße, naïve café 🐍")]

    def more(now: float) -> None:
        while due and now >= due[0][0]:
            send("-k", "customer-7", "-t", due.pop(0)[1])

    recording.run("penstock tail orders --from earliest", seconds=6.0, meanwhile=more)
    recording.run("penstock tail orders --no-follow --filter 'json.total > 10' -o jsonl")
    recording.run("penstock tail orders --from earliest --format '%p %s %t %k %S' | head -2")
    recording.run("penstock get orders -p 1 --seq 0")
    recording.run("penstock get orders -p 1 --seq 99")


def record_lag(recording: Recording, folder: Path, environ: dict[str, str]) -> None:
    words = ["send", "orders", "-q", "--text", "x" * 200, "--repeat", "12000", "--batch", "50"]
    reading = [str(PENSTOCK), "tail", "orders", "-q", "-g", "billing", "--format", "%s"]
    subprocess.run([str(PENSTOCK), "group", "create", "orders", "billing"], env=environ, check=True)
    quiet = {"env": environ, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with (
        subprocess.Popen(reading, **quiet) as reader,  # type: ignore[call-overload]  # as named
        subprocess.Popen([str(PENSTOCK), *words, "--rate", "1500/s"], **quiet) as sender,  # type: ignore[call-overload]
    ):
        try:
            recording.run("penstock group lag orders --watch --interval 1s", seconds=6.0)
        finally:
            for process in (reader, sender):
                process.terminate()


SCENES = {"send": record_send, "tail": record_tail, "group-lag-watch": record_lag}


def main() -> None:
    for name in sys.argv[1:] or (*SCENES, "kill-9"):
        if name == "kill-9":
            from tools.record_shell import KILL_9, record_kill_9  # which imports this module

            record_kill_9()
            print(KILL_9.relative_to(ROOT))
            continue
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            with service(folder, "orders:4") as environ:
                recording = Recording(environ, folder)
                SCENES[name](recording, folder, environ)
        recording.save(name)
        print(f"docs/images/recordings/{name}.txt")


if __name__ == "__main__":
    main()
