"""The checks that `penstock doctor` makes itself; tests/system/test_doctor.py runs the command."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.service.diagnostics import check_data, check_environment
from penstock.service.readiness import Finding, State


def by_name(findings: Iterator[Finding]) -> dict[str, Finding]:
    return {finding.check: finding for finding in findings}


def test_new_directory_has_no_problem(tmp_path: Path) -> None:
    data = tmp_path / "data"
    environment = by_name(check_environment(data, None, None))
    assert environment["version"].state is State.OK
    assert environment["certificate"].text == "none yet; the first start creates one"
    found = by_name(check_data(data, None))
    assert found["flush to disk"].state in (State.OK, State.WARN)
    assert found["clock"].state is State.OK
    assert found["checkpoints"].text == "0, none beyond the end of its log"
    assert found["service"].text == "none runs on this data directory"
    assert not data.exists()


def test_wrong_configuration_fails_the_certificate(tmp_path: Path) -> None:
    found = by_name(check_environment(tmp_path, tmp_path / "nowhere.toml", None))
    assert found["certificate"].state is State.FAIL
    assert "nowhere.toml" in found["certificate"].text


def test_clock_that_was_set_back_is_a_warning(tmp_path: Path) -> None:
    segment = tmp_path / "log" / "ab" / "0" / "0.log"
    segment.parent.mkdir(parents=True)
    segment.touch()
    os.utime(segment, (4_000_000_000, 4_000_000_000))
    assert by_name(check_data(tmp_path, None))["clock"].state is State.WARN


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"AMQP\x00\x00\x09\x01", "an AMQP 0-9-1 broker (not Event Hubs' AMQP 1.0)"),
        (b"AMQP\x00\x01\x00\x00", "another AMQP broker"),
        (b"HTTP/1.1", "another program"),
    ],
)
def test_program_on_a_port_is_identified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: bytes, said: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        monkeypatch.setattr("penstock.service.diagnostics._PORTS", {"amqp": port})

        def reply() -> None:
            peer, _ = listener.accept()
            with peer:
                peer.recv(8)
                peer.sendall(answer)

        thread = threading.Thread(target=reply)
        thread.start()
        found = by_name(check_data(tmp_path, None))[f"port {port} (amqp)"]
        thread.join()
    assert found.state is State.WARN
    assert found.text == f"taken by {said}; choose another with --amqp-port"


def test_listener_that_does_not_answer_fails(tmp_path: Path) -> None:
    runtime = {"pid": os.getpid(), "amqp": "127.0.0.1:1", "amqps": None}
    found = by_name(check_data(tmp_path, runtime))
    assert found["listener amqp"].state is State.FAIL
    assert "listener amqps" not in found
    limits = by_name(check_environment(tmp_path, None, runtime))["open files"]
    assert "soft limit" in limits.text
