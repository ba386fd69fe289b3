"""`penstock serve` as people and scripts meet it: what it says, how it stops, what it refuses."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
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

from penstock.client import EventData, EventHubProducerClient
from penstock.management.client import ManagementClient

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
    "kafka",
    "kafka_tls",
    "https",
    "admin",
    "portal",
    "admin_token",
    "ca_file",
    "data",
    "pid",
]

# Warnings about the machine that runs the tests.
MACHINE = ("The data directory's disk has", "Open files have")


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


@contextmanager
def on_a_terminal(data: Path, *flags: str) -> Iterator[str]:
    """What `serve` shows on a terminal, while it runs."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [PENSTOCK, "serve", f"--data={data}", *flags],
        stdin=theirs,
        stdout=theirs,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "200"},
    ) as process:
        os.close(theirs)
        try:
            shown = b""
            while b"Ctrl-C stops the service" not in shown:
                shown += os.read(ours, 65_536)
            yield re.sub(r"\x1b\[[0-9;]*m", "", shown.decode())
        finally:
            process.terminate()
            process.wait(timeout=30)
            os.close(ours)


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
        assert (facts["portal"], facts["kafka"], facts["kafka_tls"]) == (None, None, None)
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
            "listeners": "ok",
            "log": "ok",
            "portal": "off",
            "capture": "off",
            "data directory": "ok",
            "disk space": ready["checks"]["disk space"],  # the machine's own
            "open files": ready["checks"]["open files"],
            "certificate": "ok",
            "log directories": "ok",
        }
        assert [text for text in ready["warnings"] if not text.startswith(MACHINE)] == []
        assert set(ready["passes"]) == {
            "committer",
            "metering",
            "retention",
            "metric history",
            "certificate reload",
            "process tokens",
            "capture supervision",
        }
        assert fetch(facts["admin"] + "/nothing")[0] == 404
        rebound = urllib.request.Request(facts["admin"] + "/metrics", headers={"Host": "evil.test"})
        with pytest.raises(urllib.error.HTTPError, match="421"):
            urllib.request.urlopen(rebound, timeout=30)


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
    assert f"Port {port} on 127.0.0.1 is in use" in text.splitlines()[-1]
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


def test_beyond_loopback_plain_tcp_stays_closed_and_metrics_need_a_token(tmp_path: Path) -> None:
    ports = PORTS[1:]
    command = [PENSTOCK, "serve", "--json", f"--data={tmp_path / 'data'}", "--host=0.0.0.0"]
    process = subprocess.Popen([*command, *ports], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    facts = json.loads(process.stdout.readline())
    tls = ssl.create_default_context(cafile=facts["ca_file"])
    metrics = urllib.request.Request(facts["admin"] + "/metrics")
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(metrics, context=tls, timeout=30)
    metrics.add_header("Authorization", f"Bearer {facts['admin_token']}")
    with urllib.request.urlopen(metrics, context=tls, timeout=30) as answer:
        assert b"penstock_" in answer.read()
    process.terminate()
    process.communicate(timeout=30)
    assert facts["amqp"] is None
    assert facts["emulator_connection_string"] is None
    assert facts["admin"].startswith("https://")


def test_another_loopback_address_is_printed_and_reached(tmp_path: Path) -> None:
    """Banner, connection strings, tokens and certificate fit the bound address. The publication is
    larger than the specification allows, and the hub has one partition."""
    flags = ("--host=127.0.0.2", "--hub=one:1", "--limits=current")
    with serving(tmp_path / "data", *flags) as (_, facts):
        strings = [facts["connection_string"], facts["emulator_connection_string"]]
        assert all(text.startswith("Endpoint=sb://127.0.0.2:") for text in strings)
        assert all("//127.0.0.2:" in facts[field] for field in ("https", "admin"))
        for text in strings:
            asyncio.run(_publish(text, facts["ca_file"], bytes(900_000)))
        with ManagementClient(facts["admin"], facts["admin_token"]) as client:
            keys = client.keys(facts["namespace"], None, "RootManageSharedAccessKey")
        assert keys.primary_connection_string == facts["connection_string"]


async def _publish(connection_string: str, ca_file: str, body: bytes) -> None:
    async with EventHubProducerClient(
        connection_string, eventhub_name="one", ca_file=ca_file
    ) as producer:
        await producer.send_event(EventData(body), partition_id="0")


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


def test_banner_on_a_terminal_shows_where_and_what_next(tmp_path: Path) -> None:
    with on_a_terminal(tmp_path / "data", *PORTS) as text:
        pass
    assert "/signin?" not in text  # there is no portal
    for wanted in ("Namespace", "Connection string", "penstock send", "penstock bench"):
        assert wanted in text
    plain, tls = re.findall(r"^Endpoint=\S+", text, re.MULTILINE)
    assert plain.endswith("UseDevelopmentEmulator=true;")  # first: it needs nothing else
    port = tls.partition("/;")[0].rpartition(":")[2]
    assert f'custom_endpoint_address="sb://localhost:{port}"' in text
    assert f'connection_verify="{tmp_path}/data/tls/ca.pem"' in text


def test_banner_has_a_link_that_signs_in_once(tmp_path: Path) -> None:
    flags = [flag for flag in PORTS if flag != "--no-portal"]
    with on_a_terminal(tmp_path / "data", *flags, "--portal-port=0") as text:
        (link,) = re.findall(r"^http://localhost:\d+/signin\?once=\S+", text, re.MULTILINE)
        jar = urllib.request.HTTPCookieProcessor()
        with urllib.request.build_opener(jar).open(link, timeout=60) as answer:
            assert b"Sign out" in answer.read()
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(link, timeout=60)


def test_no_secret_is_written_without_a_terminal(tmp_path: Path) -> None:
    """Both streams end up in a journal or a CI log: one line `ready`, addresses only."""
    data = tmp_path / "data"
    process = subprocess.Popen(
        [PENSTOCK, "serve", f"--data={data}", *PORTS],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    lines = []
    for line in process.stderr:
        lines.append(line)
        if " ready " in line:
            break
    facts = json.loads((data / "runtime.json").read_text())
    process.terminate()
    stdout, rest = process.communicate(timeout=30)
    assert process.returncode == 0
    assert stdout == ""
    stderr = "".join(lines) + rest
    (ready,) = [line for line in stderr.splitlines() if " ready " in line]
    for name in ("amqp", "amqps", "https", "admin", "data", "pid"):
        assert f" {name}={facts[name]}" in ready
    assert " portal=- " in ready
    assert "stopping reason=SIGTERM" in rest
    assert rest.rstrip().endswith("stopped")
    root_key = (data / "root.key").read_text().strip()
    for secret in (root_key, facts["admin_token"], "SharedAccessKey=", "signin?"):
        assert secret not in stderr


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
