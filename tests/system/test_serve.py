"""`penstock serve` as people and scripts meet it: what it says, how it stops, what it refuses."""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import stat
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

PENSTOCK = str(Path(sys.executable).with_name("penstock"))
PORTS = (
    "--amqp-port=0",
    "--amqps-port=0",
    "--https-port=0",
    "--admin-port=0",
    "--no-portal",
)
FACTS = [
    "namespace",
    "connection_string",
    "emulator_connection_string",
    "amqp",
    "amqps",
    "https",
    "admin",
    "portal",
    "admin_token",
    "ca_file",
    "data",
    "pid",
]


@contextmanager
def serving(data: Path, *flags: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    command = [PENSTOCK, "serve", "--json", f"--data={data}", *PORTS, *flags]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=data.parent
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    try:
        yield process, json.loads(line)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)


def refused(*flags: str) -> tuple[int, str]:
    done = subprocess.run(
        [PENSTOCK, "serve", "--json", *flags], capture_output=True, text=True, timeout=30
    )
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    return done.returncode, done.stderr.strip()


def fetch(url: str) -> tuple[int, dict[str, Any]]:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, {}


def test_json_line_has_the_facts_in_order_and_runtime_file_repeats_them(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as (process, facts):
        assert list(facts) == FACTS
        runtime = tmp_path / "data" / "runtime.json"
        assert json.loads(runtime.read_text()) == facts
        assert stat.S_IMODE(runtime.stat().st_mode) == 0o600
        assert facts["pid"] == process.pid
        assert facts["portal"] is None
        assert facts["data"] == str(tmp_path / "data")
        assert facts["connection_string"].startswith(f"Endpoint=sb://{facts['amqps']}/;")
        assert "UseDevelopmentEmulator=true" in facts["emulator_connection_string"]
    assert not runtime.exists()


def test_stop_by_signal_is_clean(tmp_path: Path) -> None:
    for wanted in (signal.SIGTERM, signal.SIGINT):
        with serving(tmp_path / "data") as (process, _):
            process.send_signal(wanted)
            rest, errors = process.communicate(timeout=30)
            assert process.returncode == 0, errors
            assert rest == ""
            assert "Traceback" not in errors


def test_health_and_ready_answer(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as (_, facts):
        assert fetch(facts["admin"] + "/health") == (
            200,
            {"status": "healthy", "message": "Penstock is running."},
        )
        status, ready = fetch(facts["admin"] + "/ready")
        assert (status, ready["status"]) == (200, "ready")
        assert ready["checks"] == {
            "doors": "ok",
            "log": "ok",
            "portal": "off",
            "capture": "off",
        }
        assert ready["warnings"] == []
        assert fetch(facts["admin"] + "/nothing")[0] == 404


def test_key_and_certificate_survive_a_restart(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as (_, first):
        ca = Path(first["ca_file"]).read_bytes()
    with serving(tmp_path / "data") as (_, second):
        assert Path(second["ca_file"]).read_bytes() == ca
    key = "SharedAccessKey="
    assert first["connection_string"].split(key)[1] == second["connection_string"].split(key)[1]
    for private in ("root.key", "catalog.sqlite", "tls/server.key", "admin.secret"):
        mode = stat.S_IMODE((tmp_path / "data" / private).stat().st_mode)
        assert mode == 0o600, private


def test_certificate_covers_every_local_name_and_old_tls_is_refused(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as (_, facts):
        port = int(facts["amqps"].rpartition(":")[2])
        context = ssl.create_default_context(cafile=facts["ca_file"])
        for name in ("localhost", "127.0.0.1", socket.gethostname()):
            raw = socket.create_connection(("127.0.0.1", port), timeout=10)
            with raw, context.wrap_socket(raw, server_hostname=name) as secure:
                assert secure.version() in ("TLSv1.2", "TLSv1.3")
        assert facts["https"].startswith("https://localhost:")


def test_taken_port_is_one_sentence(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        flags = [flag for flag in PORTS if not flag.startswith("--amqp-")]
        code, text = refused(f"--data={tmp_path / 'data'}", *flags, f"--amqp-port={port}")
    assert code != 0
    assert f"Port {port} on 127.0.0.1 is taken" in text.splitlines()[-1]
    assert "--amqp-port" in text


def test_locked_data_directory_is_one_sentence(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as (process, _):
        code, text = refused(f"--data={tmp_path / 'data'}", *PORTS)
    assert code != 0
    assert len(text.splitlines()) == 1
    assert str(process.pid) in text


def test_bad_configuration_line_is_named(tmp_path: Path) -> None:
    config = tmp_path / "penstock.toml"
    config.write_text('host = "127.0.0.1"\namqp_prot = 5\n')
    code, text = refused(f"--config={config}", f"--data={tmp_path / 'data'}")
    assert code == 2
    assert len(text.splitlines()) == 1
    assert "line 2" in text
    assert "amqp_port" in text


def test_data_directory_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    with serving(tmp_path / "data"):
        pass
    format_file = tmp_path / "data" / "log" / "format.json"
    content = json.loads(format_file.read_text())
    version = next(key for key, value in content.items() if isinstance(value, int))
    format_file.write_text(json.dumps({**content, version: 999}))
    code, text = refused(f"--data={tmp_path / 'data'}", *PORTS)
    assert code != 0
    assert "999" in text
    assert "newer" in text


def test_plain_tcp_stays_closed_beyond_loopback_unless_asked_for(tmp_path: Path) -> None:
    ports = PORTS[1:]
    command = [PENSTOCK, "serve", "--json", f"--data={tmp_path / 'data'}", "--host=0.0.0.0"]
    process = subprocess.Popen([*command, *ports], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    facts = json.loads(process.stdout.readline())
    process.terminate()
    process.communicate(timeout=30)
    assert facts["amqp"] is None
    assert facts["emulator_connection_string"] is None
    assert facts["admin"].startswith("https://")


def test_emulator_configuration_is_read_as_it_is(tmp_path: Path) -> None:
    config = tmp_path / "Config.json"
    entity = {"Name": "eh1", "PartitionCount": "2", "ConsumerGroups": [{"Name": "cg1"}]}
    namespace = {"Type": "EventHub", "Name": "emulatorNs1", "Entities": [entity]}
    user = {"NamespaceConfig": [namespace], "LoggingConfig": {"Type": "File"}}
    config.write_text(json.dumps({"UserConfig": user}))
    with serving(tmp_path / "data", f"--config={config}") as (_, facts):
        assert facts["namespace"] == "emulatorNs1"
        assert "SharedAccessKey=SAS_KEY_VALUE;" in facts["emulator_connection_string"]
    code, text = refused(f"--config={config}", f"--data={tmp_path / 'other'}", "--host=0.0.0.0")
    assert code == 2
    assert "SAS_KEY_VALUE" in text or "key" in text


def test_banner_shows_where_and_what_next(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [PENSTOCK, "serve", f"--data={tmp_path / 'data'}", *PORTS],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if "Ctrl-C stops it" in line:
            break
    process.terminate()
    process.communicate(timeout=30)
    text = "".join(lines)
    for wanted in ("Namespace", "Connection string", "EventHubProducerClient", "penstock bench"):
        assert wanted in text


def test_version_and_usage_errors() -> None:
    done = subprocess.run([PENSTOCK, "--version"], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0
    assert done.stdout.startswith("penstock 0.")
    wrong = subprocess.run([PENSTOCK, "serve", "--nope"], capture_output=True, timeout=30)
    assert wrong.returncode == 2


@pytest.mark.parametrize(
    "flag", ["--hub=a b", "--hub=x:2000", "--amqp-port=70000", "--flush=maybe"]
)
def test_flag_that_cannot_be_used_is_one_sentence(tmp_path: Path, flag: str) -> None:
    code, text = refused(f"--data={tmp_path / 'data'}", flag)
    assert code == 2
    assert len(text.splitlines()) == 1
    assert flag.partition("=")[0] in text
