"""`send` and `tail` as processes: pipes that close, input that dawdles, Ctrl-C, terminals."""

from __future__ import annotations

import contextlib
import errno
import fcntl
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
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.cli.events.event_sender import EventCopy
from penstock.client import EventHubProducerClient
from penstock.formats.event_sections import EventContent, EventSections
from penstock.testing import InProcessBroker, broker

PENSTOCK = Path(sys.executable).parent / "penstock"
DEADLINE_S = 90.0  # a loaded machine
COLUMNS = 100


@pytest.fixture(scope="module")
def it() -> Iterator[InProcessBroker]:
    with broker(hubs={f"hub-{number}": 4 for number in range(8)}) as it:
        yield it


def environ(it: InProcessBroker) -> dict[str, str]:
    clean = {name: v for name, v in os.environ.items() if not name.startswith("PENSTOCK_")}
    return clean | {"PENSTOCK_CONNECTION_STRING": it.connection_string, "TERM": "xterm-256color"}


async def publish(it: InProcessBroker, hub: str, body: bytes, partition: str = "0") -> None:
    async with EventHubProducerClient(it.connection_string, eventhub_name=hub) as producer:
        await producer.send_event(
            EventCopy(EventContent(body, EventSections())), partition_id=partition
        )


@contextlib.contextmanager
def started(it: InProcessBroker, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [str(PENSTOCK), *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environ(it),
    )
    with process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()


class Terminal:
    """A command on a terminal of 100 columns; `screen` is what it wrote there."""

    def __init__(self, it: InProcessBroker, *words: str, stdout: bool) -> None:
        """stderr is on the terminal; stdout too, or nowhere."""
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 30, COLUMNS, 0, 0))
        self.process = subprocess.Popen(
            [str(PENSTOCK), *words],
            stdin=subprocess.DEVNULL,
            stdout=slave if stdout else subprocess.DEVNULL,
            stderr=slave,
            env=environ(it) | {"COLUMNS": str(COLUMNS)},
            start_new_session=True,
        )
        os.close(slave)
        self.screen = b""

    def read_until(self, reached: Callable[[bytes], bool]) -> None:
        """Or until the command's end, when the terminal says so."""
        deadline = time.monotonic() + DEADLINE_S
        while not reached(self.screen):
            ready, _, _ = select.select([self._master], [], [], deadline - time.monotonic())
            assert ready, self.screen
            try:
                data = os.read(self._master, 65536)
            except OSError as error:
                assert error.errno == errno.EIO  # nobody writes any more
                return
            if not data:
                return
            self.screen += data

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(DEADLINE_S)
        os.close(self._master)


@contextlib.contextmanager
def on_terminal(it: InProcessBroker, *words: str, stdout: bool) -> Iterator[Terminal]:
    terminal = Terminal(it, *words, stdout=stdout)
    try:
        yield terminal
    finally:
        terminal.close()


async def test_slow_input_is_sent_as_it_comes(it: InProcessBroker) -> None:
    with started(it, "send", "hub-0", "--lines") as process:
        assert process.stdin is not None and process.stderr is not None
        process.stdin.write(b"first\nsec")
        process.stdin.flush()
        (event,) = await it.wait_for_async("hub-0", 1, timeout_s=DEADLINE_S)
        assert event.text == "first"
        process.stdin.close()
        assert process.wait(DEADLINE_S) == 0
        assert process.stderr.read().startswith(b"Sent 2 events")
    assert {each.text for each in it.published("hub-0")} == {"first", "sec"}


async def test_tail_follows_all_partitions_until_interrupted(it: InProcessBroker) -> None:
    await publish(it, "hub-1", b"before")
    with started(it, "tail", "hub-1", "--format", "%p %b") as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stderr.readline() == b"Reading 4 partitions of hub-1. Ctrl-C stops.\n"
        for partition in range(4):
            await publish(it, "hub-1", b"event", str(partition))
        lines = sorted(process.stdout.readline() for _ in range(4))
        assert lines == [b"%d event\n" % partition for partition in range(4)]
        process.send_signal(signal.SIGINT)
        assert process.wait(DEADLINE_S) == 0
        assert process.stdout.read() == b""
        assert process.stderr.read() == b""


async def test_tail_ends_when_its_reader_goes_also_while_nothing_comes(
    it: InProcessBroker,
) -> None:
    await publish(it, "hub-2", b"only")
    with started(it, "tail", "hub-2", "--from", "earliest") as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == b"only\n"
        process.stdout.close()  # as `| head -1` does
        assert process.wait(DEADLINE_S) == 0
        assert process.stderr.read() == b"Reading 4 partitions of hub-2. Ctrl-C stops.\n"


async def test_tail_goes_on_where_it_was_when_the_connection_is_lost(it: InProcessBroker) -> None:
    with started(it, "tail", "hub-3", "--format", "%b") as process:
        assert process.stdout is not None and process.stderr is not None
        process.stderr.readline()
        await publish(it, "hub-3", b"1")
        assert process.stdout.readline() == b"1\n"
        it.faults.drop_connection(0, hub="hub-3", side="receive")
        await publish(it, "hub-3", b"2")
        await publish(it, "hub-3", b"3", "1")
        assert sorted(process.stdout.readline() for _ in range(2)) == [b"2\n", b"3\n"]


def test_send_shows_a_bar_on_a_terminal(it: InProcessBroker) -> None:
    words = ("send", "hub-4", "--text", "x" * 1000, "--repeat", "60", "--rate", "40/s")
    with on_terminal(it, *words, stdout=False) as terminal:
        terminal.read_until(lambda screen: False)
        assert terminal.process.wait(DEADLINE_S) == 0
    shown = re.sub(rb"\x1b\[[0-9;?]*[a-zA-Z]", b"", terminal.screen).decode()
    frames = shown.replace("\r", "\n").splitlines()
    bars = [
        frame for frame in frames if re.search(r"[0-9]+ of 60 events +[0-9.]+/s .* KB/s", frame)
    ]
    assert bars, shown
    assert all(len(frame.rstrip()) <= COLUMNS for frame in frames)
    told = [frame for frame in frames if frame.strip()][-1]
    assert told.startswith("Sent 60 events (58.6 KB) in ")


async def test_tail_on_a_terminal_shows_hostile_bytes_as_text(it: InProcessBroker) -> None:
    await publish(it, "hub-5", b"\x1b]0;owned\x07\x1b[2J\xff\x9b31m \xe2\x80\xaetxt\r\n")
    with on_terminal(it, "tail", "hub-5", "--from", "earliest", stdout=True) as terminal:
        terminal.read_until(lambda screen: b"owned" in screen and screen.endswith(b"\n"))
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.process.wait(DEADLINE_S) == 0
    (line,) = [each for each in terminal.screen.split(b"\r\n") if b"owned" in each]
    assert re.fullmatch(rb"\x1b\[2m0:0 [0-9:.]{12}\x1b\[0m (.*)", line)
    assert line.endswith(rb" \e]0;owned\x07\e[2J\xff\x9b31m \u202etxt\r\n")


async def test_get_on_a_terminal_is_inert_too(it: InProcessBroker) -> None:
    await publish(it, "hub-6", b"\x1b[2Jx")
    words = ("get", "hub-6", "-p", "0", "--seq", "0")
    with on_terminal(it, *words, stdout=True) as terminal:
        terminal.read_until(lambda screen: screen.endswith(b"\n"))
        assert terminal.process.wait(DEADLINE_S) == 0
    assert terminal.screen == b"\\e[2Jx\r\n"


def test_export_into_a_closed_pipe_ends_quietly(it: InProcessBroker) -> None:
    with started(it, "send", "hub-7", "--lines", "-q") as sending:
        sending.communicate(b"x" * 90 + b"\n" * 20_000, timeout=DEADLINE_S)
        assert sending.returncode == 0
    with started(it, "export", "hub-7", "-", "-q") as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline().startswith(b"{")
        process.stdout.close()
        assert process.wait(DEADLINE_S) == 0
        assert process.stderr.read() == b""
