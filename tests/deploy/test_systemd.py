"""deploy/penstock.service: systemd accepts it, it is confined, and it reports readiness."""

from __future__ import annotations

import configparser
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.cli.exit_codes import ExitCode
from penstock.service.config.settings import SETTINGS

UNIT = Path(__file__).resolve().parents[2] / "deploy" / "penstock.service"
PENSTOCK = Path(sys.executable).with_name("penstock")
EXPOSURE_MAX = 1.5  # of 10; what systemd-analyze of systemd 252 says, rounded up
DEADLINE_S = 60
PORTS = ("--amqp-port=0", "--amqps-port=0", "--https-port=0", "--admin-port=0", "--no-portal")


class Unit(dict[str, list[str]]):
    """The settings of [Service]; one may be there several times."""

    def __init__(self) -> None:
        parser = configparser.RawConfigParser(strict=True, dict_type=dict)
        parser.optionxform = str  # type: ignore[assignment,method-assign]  # case matters
        parser.read_string(re.sub(r"(?m)^(SystemCallFilter)=~", r"\1-=~", UNIT.read_text()))
        super().__init__({name: [value] for name, value in parser["Service"].items()})

    def one(self, name: str) -> str:
        (value,) = self[name]
        return value


@pytest.fixture(scope="module")
def unit() -> Unit:
    return Unit()


@pytest.fixture(scope="module")
def systemd_analyze() -> str:
    found = shutil.which("systemd-analyze")
    if found is None:
        pytest.skip("systemd-analyze is not installed")
    return found


@pytest.fixture
def installed(tmp_path: Path, unit: Unit) -> Path:
    """The unit with a command that is there: this environment's."""
    program = unit.one("ExecStart").split()[0]
    file = tmp_path / UNIT.name
    file.write_text(UNIT.read_text().replace(program, str(PENSTOCK)))
    return file


def test_systemd_accepts_every_line(systemd_analyze: str, installed: Path) -> None:
    done = subprocess.run(
        [systemd_analyze, "verify", "--man=no", str(installed)],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_exposure_is_low(systemd_analyze: str, installed: Path) -> None:
    done = subprocess.run(
        [
            *(systemd_analyze, "security", "--offline=true", "--no-pager"),
            *(f"--threshold={EXPOSURE_MAX * 10:.0f}", str(installed)),
        ],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-300:] + done.stderr


def test_settings_are_known_and_credentials_are_no_environment(unit: Unit) -> None:
    variables = {setting.variable for setting in SETTINGS}
    named = set(re.findall(r"PENSTOCK_\w+", UNIT.read_text()))
    assert named <= variables
    assert unit.one("Environment") == f"PENSTOCK_DATA=%S/{unit.one('StateDirectory')}"
    assert not [name for name in named if name.endswith("KEY")]
    folder = unit.one("LoadCredential").partition(":")[2]
    assert folder.removeprefix("/etc/") in unit.one("ConfigurationDirectory").split()
    assert int(unit.one("RestartPreventExitStatus")) == ExitCode.USAGE


def test_readiness_is_reported_when_every_listener_is_open(unit: Unit, tmp_path: Path) -> None:
    """The unit's own command, with systemd's side of the protocol played by this test."""
    assert unit.one("Type") == "notify"
    words = shlex.split(unit.one("ExecStart"))
    clean = {name: v for name, v in os.environ.items() if not name.startswith("PENSTOCK_")}
    data, path = tmp_path / "state", tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(path))
        manager.settimeout(DEADLINE_S)
        environ = clean | {"PENSTOCK_DATA": str(data), "NOTIFY_SOCKET": str(path)}
        process = subprocess.Popen(
            [str(PENSTOCK), *words[1:], *PORTS], env=environ, stderr=subprocess.DEVNULL
        )
        try:
            assert manager.recv(100) == b"READY=1"
            ready = subprocess.run([str(PENSTOCK), "health"], env=environ, timeout=DEADLINE_S)
            assert ready.returncode == 0
            process.send_signal(signal.SIGTERM)
            assert manager.recv(100) == b"STOPPING=1"
            assert process.wait(DEADLINE_S) == 0
        finally:
            process.kill()
            process.wait()
