"""`penstock doctor`: what a person would look at first when something is wrong."""

from __future__ import annotations

import contextlib
import os
import socket
import sqlite3
import statistics
import sys
import time
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.output import Format, OutputFormat, print_rows
from penstock.cli.service_lookup import ServiceFlags, data_directory
from penstock.io.database import open_read_only

if TYPE_CHECKING:
    from penstock.service.certificates import CertificateValidity

OK, WARN, FAIL = "ok", "warn", "fail"
Finding = tuple[str, str, str]  # what, how it is, what was seen and what to do

_FSYNC_SLOW_MS = 20.0
_FSYNC_PROBES = 20
_CONNECT_S = 2.0
_READY_S = 10.0
_CHECKED_BY_SERVICE = ("certificate", "log directories")
_AMQP_HEADER = b"AMQP\x00\x01\x00\x00"
_EARLIEST_SANE_S = 1_735_689_600  # 2025-01-01: before that the clock was never set
_PORTS = {"amqp": 5672, "amqps": 5671, "https": 8443, "admin": 5300}


def doctor(
    data: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Data directory [default: ./penstock-data]")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="TOML, or Config.json [PENSTOCK_CONFIG]")
    ] = None,
    output: Format = OutputFormat.TABLE,
) -> None:
    """Check service, ports, certificate, clock, disk, checkpoints.

    The checks of `/ready`, and some that take longer. Exit code 1 when something fails.
    """
    found = findings(data_directory(ServiceFlags(data=data)), config)
    rows = [{"check": what, "state": state, "seen": seen} for what, state, seen in found]
    print_rows(rows, output, title="penstock doctor")
    if any(state == FAIL for _, state, _ in found):
        raise typer.Exit(1)


def findings(data: Path, config: Path | None = None) -> list[Finding]:
    return [
        *_program(),
        *_readiness(data, config),
        _fsync(data if data.is_dir() else data.absolute().parent),
        *_clock(data),
        *_checkpoints(data),
        *_listeners(data),
    ]


def _program() -> Iterator[Finding]:
    from penstock import __version__
    from penstock.amqp.transfer_scanner import COMPILED
    from penstock.kernels import KERNEL

    yield "version", OK, f"penstock {__version__}, Python {sys.version.split()[0]}"
    if KERNEL == "compiled" and COMPILED:
        yield "kernel", OK, "compiled"
    else:
        yield "kernel", WARN, "pure: install with a C compiler for several times the speed"
    try:
        from uvloop import __version__ as uvloop_version  # type: ignore[attr-defined]  # it is there
    except ImportError:
        yield "event loop", WARN, "asyncio: uvloop is not installed"
    else:
        yield "event loop", OK, f"uvloop {uvloop_version}"


def _readiness(data: Path, config: Path | None) -> Iterator[Finding]:
    """The checks of `/ready`: those of a running service as it reports them, and those of this
    machine."""
    from penstock.io.runtime_file import read_runtime
    from penstock.service.readiness import Subject, run_checks

    runtime = read_runtime(data)
    subject = Subject(
        data=data,
        now_ms=time.time_ns() // 1_000_000,
        certificate=None if runtime is not None else _certificate(data, config),
        open_files=None if runtime is None else _open_files_of(int(str(runtime["pid"]))),
    )
    local = [
        each
        for each in run_checks(subject)
        if runtime is None or each.check not in _CHECKED_BY_SERVICE
    ]
    for each in local:
        yield each.check, each.state.value, each.text
    if runtime is not None:
        yield from _running_service(runtime, seen={each.check for each in local})


def _certificate(data: Path, config: Path | None) -> CertificateValidity | str | None:
    """Of the certificate that `serve` would use here: from when to when it is valid, or why it
    cannot be used."""
    from penstock.model.errors import ConfigurationError
    from penstock.service.certificates import (
        Certificates,
        configured_certificates,
        read_validity,
        server_context,
    )
    from penstock.service.config.loader import load_settings

    try:
        settings = load_settings(flags={"data": data, "config": config}, environ=os.environ)
        own = configured_certificates(settings)
        if own is not None:
            server_context(own)
            return read_validity(own)
        tls = data / "tls"
        files = Certificates(
            certificate_file=tls / "server.pem", key_file=tls / "server.key", ca_file=tls / "ca.pem"
        )
        return read_validity(files) if tls.is_dir() else None
    except ConfigurationError as error:
        return str(error)


def _open_files_of(pid: int) -> tuple[int, int] | None:
    """The limits of another process, where the system tells them (Linux)."""
    try:
        text = Path(f"/proc/{pid}/limits").read_text()
        words = next(
            line for line in text.splitlines() if line.startswith("Max open files")
        ).split()
        soft, hard = (-1 if word == "unlimited" else int(word) for word in words[3:5])
    except (OSError, StopIteration, ValueError):
        return None
    return soft, hard


def _running_service(runtime: Mapping[str, object], seen: Collection[str]) -> Iterator[Finding]:
    from penstock.cli.server.probe import readiness
    from penstock.cli.service_lookup import AdminEndpoint

    admin = AdminEndpoint(str(runtime["admin"]), None, str(runtime["ca_file"]), None)
    try:
        is_ready, body = readiness(admin, timeout_s=_READY_S)
    except OSError as error:
        yield "ready", FAIL, f"{admin.url}/ready does not answer: {error}"
        return
    yield "ready", OK if is_ready else FAIL, str(body.get("status"))
    checks, warnings, passes = (body.get(name) for name in ("checks", "warnings", "passes"))
    for name, value in checks.items() if isinstance(checks, dict) else ():
        if name not in seen and value != "warning":
            yield name, OK if value in ("ok", "off", "starting") else FAIL, str(value)
    for text in warnings if isinstance(warnings, list) else ():
        yield "warning", WARN, str(text)
    if isinstance(passes, dict):
        ages = (f"{name} {_age(seconds)}" for name, seconds in passes.items())
        yield "last passes", OK, ", ".join(ages)


def _age(seconds: object) -> str:
    return f"{seconds:,.0f} s ago" if isinstance(seconds, int | float) else "never"


def _fsync(place: Path) -> Finding:
    probe = place / f".penstock-doctor-{os.getpid()}"
    took = []
    try:
        with probe.open("wb", buffering=0) as file:
            for _ in range(_FSYNC_PROBES):
                started = time.perf_counter()
                file.write(b"x" * 4096)
                os.fdatasync(file.fileno())
                took.append((time.perf_counter() - started) * 1000)
    except OSError as error:
        return "flush to disk", FAIL, f"cannot write in {place}: {error.strerror}"
    finally:
        probe.unlink(missing_ok=True)
    median = statistics.median(took)
    seen = f"4 KB in {median:.2f} ms (slowest of {_FSYNC_PROBES}: {max(took):.2f} ms)"
    if median > _FSYNC_SLOW_MS:
        return "flush to disk", WARN, f"{seen}: every acknowledgement waits for one"
    return "flush to disk", OK, seen


def _clock(data: Path) -> Iterator[Finding]:
    now_s = time.time()
    if now_s < _EARLIEST_SANE_S:
        yield "clock", FAIL, f"it is {time.ctime(now_s)}: set the clock, tokens expire by it"
        return
    newest_s = max((file.stat().st_mtime for file in data.glob("log/*/*/*.log")), default=0.0)
    if newest_s > now_s + 60:
        behind = newest_s - now_s
        yield "clock", WARN, f"{behind:.0f} s behind the newest segment: was the clock set back?"
    else:
        yield "clock", OK, time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(now_s))


def _checkpoints(data: Path) -> Iterator[Finding]:
    """A group whose checkpoint lies beyond the end of the log passes over what comes next: so it is
    after a log was restored, or made anew, beneath its checkpoints."""
    kept = _rows(
        data / "checkpoints.sqlite",
        "SELECT hub, consumer_group, partition_id, sequence_number FROM checkpoints",
    )
    if isinstance(kept, str):
        yield "checkpoints", WARN, kept
        return
    hubs = _rows(data / "catalog.sqlite", "SELECT id, name FROM hubs")
    names = dict(hubs) if isinstance(hubs, list) else {}
    # The checkpoints first: the log of a running service only grows meanwhile.
    beyond = 0
    for hub_id, group, partition, sequence in kept:
        if hub_id not in names:
            continue  # deleted, and its checkpoints are forgotten with the next start
        last = _last_sequence(data / "log" / hub_id / partition, wanted=sequence)
        if last is not None and sequence > last:
            beyond += 1
            seen = (
                f"at {sequence}, beyond the log's last event ({last}): `penstock group seek` sets "
                "it back, or events are passed over"
            )
            yield f"checkpoint {names[hub_id]} {group}/{partition}", FAIL, seen
    if not beyond:
        yield "checkpoints", OK, f"{len(kept)}, none beyond the end of its log"


def _rows(file: Path, query: str) -> list[tuple[Any, ...]] | str:
    """What the file holds, read and never written, also beside a running service; or why not."""
    if not file.is_file():
        return []
    try:
        with contextlib.closing(open_read_only(file, busy_s=_CONNECT_S)) as opened:
            return opened.execute(query).fetchall()
    except sqlite3.Error as error:
        return f"{file} cannot be read: {error}"


def _last_sequence(folder: Path, *, wanted: int) -> int | None:
    """The partition's newest event, or any from `wanted` on; -1 when nothing was ever written to
    it, None when it cannot be read (which `penstock log verify` tells)."""
    from penstock.log.embedded.verify import DumpedRecord, DumpedSegment, dump_segment
    from penstock.model.errors import PenstockError

    newest = max(folder.glob("*.log"), default=None)
    if newest is None:
        return -1
    last = -1
    try:
        for item in dump_segment(newest):
            if isinstance(item, DumpedSegment):
                last = item.first_sequence - 1
            elif isinstance(item, DumpedRecord):
                last = item.first_sequence + item.count - 1
            if last >= wanted:
                break
    except (OSError, PenstockError):
        return None
    return last


def _listeners(data: Path) -> Iterator[Finding]:
    from penstock.io.runtime_file import read_runtime

    runtime = read_runtime(data)
    if runtime is not None:
        yield "service", OK, f"runs as process {runtime['pid']} on this data directory"
        for listener in ("amqp", "amqps"):
            if runtime.get(listener) is not None:
                host, _, port = str(runtime[listener]).rpartition(":")
                yield _reachable(listener, host, int(port))
        return
    yield "service", OK, "none runs on this data directory"
    for listener, default in _PORTS.items():
        yield _free(listener, default)


def _reachable(listener: str, host: str, port: int) -> Finding:
    try:
        with socket.create_connection((host, port), timeout=_CONNECT_S):
            return f"listener {listener}", OK, f"{host}:{port} answers"
    except OSError as error:
        return f"listener {listener}", FAIL, f"{host}:{port} does not answer ({error})"


def _free(listener: str, port: int) -> Finding:
    what = f"port {port} ({listener})"
    try:
        with socket.create_server(("127.0.0.1", port)):
            return what, OK, "free"
    except OSError:
        return what, WARN, f"taken by {_listener(port)}; give another with --{listener}-port"


def _listener(port: int) -> str:
    """RabbitMQ and its kin speak AMQP 0-9-1 on 5672, and say so when greeted with 1.0."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=_CONNECT_S) as peer:
            peer.sendall(_AMQP_HEADER)
            answer = peer.recv(8)
    except OSError:
        return "another program"
    if answer.startswith(b"AMQP\x00\x00\x09"):
        return "an AMQP 0-9-1 broker (not Event Hubs' AMQP 1.0)"
    return "another AMQP broker" if answer.startswith(b"AMQP") else "another program"
