"""The programs in examples/, run as a reader of the README runs them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.conftest import Server

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
DEADLINE_S = 60


class Examples:
    """Runs a program of examples/ with one of the two printed connection strings."""

    def __init__(self, server: Server, hub: str, *, tls: bool) -> None:
        self._environ = {
            **{k: v for k, v in os.environ.items() if not k.startswith("PENSTOCK_")},
            "PENSTOCK_CONNECTION_STRING": server.connection_string(tls=tls),
            "PENSTOCK_CA_FILE": server["ca_file"],
            "PENSTOCK_HUB": hub,
        }

    def run(self, name: str, *arguments: str) -> list[str]:
        ended = subprocess.run(
            [sys.executable, str(EXAMPLES / name), *arguments],
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            env=self._environ,
            check=False,
        )
        assert ended.returncode == 0, ended.stderr
        return ended.stdout.splitlines()


@pytest.fixture(params=[False, True], ids=["tcp", "tls"])
def examples(request: pytest.FixtureRequest, server: Server, hub: str) -> Examples:
    return Examples(server, hub, tls=request.param)


def test_send_and_receive(examples: Examples) -> None:
    assert examples.run("send.py", "--key", "key1", "one", "two")[0].startswith("sent 2 events")
    lines = examples.run("receive.py", "--count", "2")
    assert [line.split() for line in lines] == [["3/0", "one"], ["3/1", "two"]]


@pytest.mark.parametrize("program", ["processor.py", "client_processor.py"])
def test_processor_goes_on_where_it_stopped(
    server: Server, hub: str, tmp_path: Path, program: str
) -> None:
    examples = Examples(server, hub, tls=False)
    store = ("--store", str(tmp_path / "checkpoints.sqlite"))
    examples.run("send.py", "--key", "key1", "one", "two")
    assert examples.run(program, *store, "--count", "2") == ["3: one", "3: two"]
    examples.run("send.py", "--key", "key1", "three")
    assert examples.run(program, *store, "--count", "1") == ["3: three"]


def test_examples_say_what_they_lack() -> None:
    environ = {k: v for k, v in os.environ.items() if not k.startswith("PENSTOCK_")}
    command = [sys.executable, str(EXAMPLES / "send.py")]
    ended = subprocess.run(command, capture_output=True, text=True, env=environ, check=False)
    assert ended.returncode == 1
    assert "PENSTOCK_CONNECTION_STRING" in ended.stderr


def test_every_example_is_run() -> None:
    here = Path(__file__).read_text()
    programs = [file.name for file in EXAMPLES.glob("*.py") if "__main__" in file.read_text()]
    assert programs
    assert [name for name in programs if f'"{name}"' not in here] == []
