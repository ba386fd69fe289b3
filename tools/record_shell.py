"""A shell on a pseudo-terminal: commands are typed, and the screen is kept whenever it changes."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import signal
import socket
import struct
import subprocess
import tempfile
import termios
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from tools.record_cli import PENSTOCK, ROOT, Screen, characters, read_terminal
from tools.terminal_svg import draw

KEYS, KEYS_S = 4, 0.09  # so many keys at once: each step takes room in the picture
PAUSE_S = 0.5  # between what was printed and the next command
STILL_MAX_S = 1.2  # a screen that stands still is shown for so long
DEADLINE_S = 60.0
PROMPT = "$ "


class Shell:
    """Frames are (seconds, lines); the clock of the recording leaves out long pauses."""

    def __init__(self, environ: dict[str, str], folder: Path, *, columns: int, rows: int) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self._process = subprocess.Popen(
            ["bash", "--norc", "--noprofile", "-i"],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**environ, "PS1": PROMPT, "HISTFILE": "/dev/null", "BASH_SILENCE": "1"},
            cwd=folder,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(slave)
        self._screen = Screen(columns=columns, rows=rows)
        self._pending = b""
        self._clock_s = 0.0
        self._seen_s = time.monotonic()
        self.frames: list[tuple[float, list[str]]] = []
        self.wait(lambda text: text.endswith(PROMPT.strip()))

    def close(self) -> None:
        os.close(self._master)
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(DEADLINE_S)

    @property
    def text(self) -> str:
        return self._screen.text

    def type(self, command: str) -> None:
        """Type a command and press Enter."""
        self._follow(PAUSE_S)
        for begin in range(0, len(command), KEYS):
            os.write(self._master, command[begin : begin + KEYS].encode())
            self._follow(KEYS_S)
        self._follow(PAUSE_S / 2)
        os.write(self._master, b"\n")

    def run(self, command: str) -> str:
        """What it printed, when the next prompt is there."""
        self.type(command)
        self.wait(lambda text: text.endswith("\n" + PROMPT.strip()))
        return self.text

    def pause(self, seconds: float) -> None:
        self._follow(seconds)

    def wait(self, is_there: Callable[[str], bool]) -> None:
        deadline_s = time.monotonic() + DEADLINE_S
        while not is_there(self.text):
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"it did not come:\n{self.text}")
            self._follow(0.05)

    def _follow(self, seconds: float) -> None:
        """Keep each new screen of the next `seconds`."""
        until_s = time.monotonic() + seconds
        while (left_s := until_s - time.monotonic()) > 0:
            ready, _, _ = select.select([self._master], [], [], left_s)
            if ready:
                whole, self._pending = characters(self._pending + read_terminal(self._master))
                self._screen.feed(whole)
                self._keep()

    def _keep(self) -> None:
        lines = self.text.splitlines()
        if self.frames and self.frames[-1][1] == lines:
            return
        now_s = time.monotonic()
        self._clock_s += min(now_s - self._seen_s, STILL_MAX_S)
        self._seen_s = now_s
        if self.frames and self._clock_s - self.frames[-1][0] < KEYS_S / 2:
            self.frames[-1] = (self.frames[-1][0], lines)
        else:
            self.frames.append((self._clock_s, lines))


# --- what is recorded -----------------------------------------------------------------------------

EVENTS, RATE = 100_000, "20000/s"
KILL_9 = ROOT / "docs" / "images" / "kill-9.svg"
_COLUMNS, _ROWS, _HOLD_S = 98, 22, 6.0


def record_kill_9() -> None:
    """Publish, kill -9, restart, nothing lost."""
    doors = ("AMQP", "AMQPS", "HTTPS", "ADMIN")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        sockets = [stack.enter_context(socket.create_server(("localhost", 0))) for _ in doors]
        ports = [str(each.getsockname()[1]) for each in sockets]
        for each in sockets:
            each.close()
        environ = {
            **{name: v for name, v in os.environ.items() if not name.startswith("PENSTOCK_")},
            **{
                f"PENSTOCK_{door.upper()}_PORT": port
                for door, port in zip(doors, ports, strict=True)
            },
            "PENSTOCK_PORTAL": "false",
            "PATH": f"{PENSTOCK.parent}:{os.environ.get('PATH', '')}",
            "TERM": "xterm-256color",
            "LANG": "C.UTF-8",
        }
        shell = Shell(environ, folder, columns=_COLUMNS, rows=_ROWS)
        stack.callback(shell.close)
        shell.run("penstock serve --hub orders &> serve.log &")
        shell.run("penstock health --wait 30s")
        shell.run("# 100,000 events, 20,000 a second")
        shell.run(f"seq {EVENTS} | penstock send orders --lines - --rate {RATE} &> sent &")
        shell.pause(2.0)
        shell.run("kill -9 %1  # the broker, while they arrive")
        shell.run("penstock serve --hub orders &>> serve.log &")
        shell.run("wait %2; tail -1 sent")
        counted = shell.run(
            "penstock tail orders --from earliest --no-follow -q --format %b | sort -nu | wc -l"
        )
        verified = shell.run("penstock log verify > verified")
        shell.run("# every acknowledged event is there")
        if f"\n{EVENTS}\n" not in counted or "Every stored event can be read" not in verified:
            raise RuntimeError(f"Events are missing:\n{shell.text}")
        frames = shell.frames
        os.kill(int(json.loads((folder / "penstock-data" / "runtime.json").read_text())["pid"]), 15)
    title = "publish, kill -9, restart: nothing lost"
    KILL_9.write_text(draw(frames, title=title, columns=_COLUMNS, hold_s=_HOLD_S))
