"""Checks for `penstock doctor` that a service does not make itself: the installed program, the
certificate before a start, the disk's flush time, the clock, checkpoints, ports."""

from __future__ import annotations

import os
import socket
import statistics
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from penstock.catalog.offline import hub_names
from penstock.checkpoints.sqlite_file import read_checkpoints_offline
from penstock.log.embedded.verify import RecordHeader, SegmentHeader, dump_segment
from penstock.model.errors import ConfigurationError, DataDirectoryError, PenstockError
from penstock.service.certificates import (
    CertificateValidity,
    configured_certificates,
    development_files,
    read_validity,
    server_context,
)
from penstock.service.config.loader import load_settings
from penstock.service.readiness import Finding, State, run_checks

_FLUSH_SLOW_MS = 20.0
_FLUSHES = 20
_CONNECT_S = 2.0
_CHECKED_BY_SERVICE = ("certificate", "log directories")
_AMQP_HEADER = b"AMQP\x00\x01\x00\x00"
_EARLIEST_S = 1_735_689_600  # 2025-01-01: a clock before this date was never set
_PORTS = {"amqp": 5672, "amqps": 5671, "https": 8443, "admin": 5300}

Runtime = Mapping[str, object]  # of runtime.json


def check_environment(
    data: Path, config: Path | None, runtime: Runtime | None
) -> Iterator[Finding]:
    """The installed program, and the checks of `/ready` that need no service."""
    yield from _check_program()
    findings = run_checks(
        data,
        now_ms=time.time_ns() // 1_000_000,
        certificate=None if runtime is not None else _find_certificate(data, config),
        open_files=None if runtime is None else _read_open_files_limit(int(str(runtime["pid"]))),
    )
    for finding in findings:
        if runtime is None or finding.check not in _CHECKED_BY_SERVICE:
            yield finding


def check_data(data: Path, runtime: Runtime | None) -> Iterator[Finding]:
    """Disk, clock and checkpoints of a data directory, and the ports of its service."""
    yield _check_flush(data if data.is_dir() else data.absolute().parent)
    yield _check_clock(data)
    yield from _check_checkpoints(data)
    if runtime is None:
        yield Finding("service", State.OK, "none runs on this data directory")
        for listener, port in _PORTS.items():
            yield _check_port(listener, port)
        return
    text = f"runs as process {runtime['pid']} on this data directory"
    yield Finding("service", State.OK, text)
    for listener in ("amqp", "amqps"):
        if runtime.get(listener) is not None:
            host, _, port_text = str(runtime[listener]).rpartition(":")
            yield _check_listener(listener, host, int(port_text))


def _check_program() -> Iterator[Finding]:
    from penstock import __version__
    from penstock.amqp.transfer_scanner import COMPILED
    from penstock.kernels import KERNEL

    version = f"penstock {__version__}, Python {sys.version.split()[0]}"
    yield Finding("version", State.OK, version)
    if KERNEL == "compiled" and COMPILED:
        yield Finding("kernel", State.OK, "compiled")
    else:
        text = "pure: install with a C compiler for several times the speed"
        yield Finding("kernel", State.WARN, text)
    try:
        from uvloop import __version__ as uvloop_version  # type: ignore[attr-defined]  # it is there
    except ImportError:
        yield Finding("event loop", State.WARN, "asyncio: uvloop is not installed")
    else:
        yield Finding("event loop", State.OK, f"uvloop {uvloop_version}")


def _find_certificate(data: Path, config: Path | None) -> CertificateValidity | str | None:
    """The validity of the certificate that `serve` would use, or why it cannot be used; None if the
    first start creates one."""
    try:
        settings = load_settings(flags={"data": data, "config": config}, environ=os.environ)
        own = configured_certificates(settings)
        if own is not None:
            server_context(own)
            return read_validity(own)
        tls = data / "tls"
        return read_validity(development_files(tls)) if tls.is_dir() else None
    except ConfigurationError as error:
        return str(error)


def _read_open_files_limit(pid: int) -> tuple[int, int] | None:
    """Soft and hard limit of another process; None where the system does not tell (not Linux)."""
    try:
        lines = Path(f"/proc/{pid}/limits").read_text().splitlines()
        words = next(line for line in lines if line.startswith("Max open files")).split()
        soft, hard = (-1 if word == "unlimited" else int(word) for word in words[3:5])
    except (OSError, StopIteration, ValueError):
        return None
    return soft, hard


def _check_flush(directory: Path) -> Finding:
    """Measure how long the disk takes to store 4 KB."""
    probe = directory / f".penstock-doctor-{os.getpid()}"
    times_ms = []
    try:
        with probe.open("wb", buffering=0) as file:
            for _ in range(_FLUSHES):
                started_s = time.perf_counter()
                file.write(b"x" * 4096)
                os.fdatasync(file.fileno())
                times_ms.append((time.perf_counter() - started_s) * 1000)
    except OSError as error:
        text = f"cannot write in {directory}: {error.strerror}"
        return Finding("flush to disk", State.FAIL, text)
    finally:
        probe.unlink(missing_ok=True)
    median_ms = statistics.median(times_ms)
    text = f"4 KB in {median_ms:.2f} ms (slowest of {_FLUSHES}: {max(times_ms):.2f} ms)"
    if median_ms > _FLUSH_SLOW_MS:
        return Finding("flush to disk", State.WARN, f"{text}: every acknowledgement waits for one")
    return Finding("flush to disk", State.OK, text)


def _check_clock(data: Path) -> Finding:
    now_s = time.time()
    if now_s < _EARLIEST_S:
        text = f"it is {time.ctime(now_s)}: set the clock, tokens expire by it"
        return Finding("clock", State.FAIL, text)
    newest_s = max((file.stat().st_mtime for file in data.glob("log/*/*/*.log")), default=0.0)
    if newest_s > now_s + 60:
        text = f"{newest_s - now_s:.0f} s behind the newest segment: was the clock set back?"
        return Finding("clock", State.WARN, text)
    now = time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(now_s))
    return Finding("clock", State.OK, now)


def _check_checkpoints(data: Path) -> Iterator[Finding]:
    """A group whose checkpoint is beyond the end of the log skips the next events. It happens when
    a log is restored or created again without its checkpoints."""
    try:
        # Before the log is read: the log of a running service only grows meanwhile.
        checkpoints = read_checkpoints_offline(data / "checkpoints.sqlite")
    except DataDirectoryError as error:
        yield Finding("checkpoints", State.WARN, str(error))
        return
    names = hub_names(data)
    beyond = 0
    for hub_id, group, checkpoint in checkpoints:
        if hub_id not in names:
            continue  # the hub is deleted; the next start removes its checkpoints
        partition, sequence = checkpoint.partition_id, checkpoint.sequence_number
        last = _find_last_sequence(data / "log" / hub_id / partition, at_least=sequence)
        if last is not None and sequence > last:
            beyond += 1
            hub = names[hub_id].partition("/")[2]
            text = (
                f"at {sequence}, beyond the log's last event ({last}): `penstock group seek` sets "
                "it back, otherwise events are skipped"
            )
            yield Finding(f"checkpoint {hub} {group}/{partition}", State.FAIL, text)
    if not beyond:
        text = f"{len(checkpoints)}, none beyond the end of its log"
        yield Finding("checkpoints", State.OK, text)


def _find_last_sequence(directory: Path, *, at_least: int) -> int | None:
    """The sequence number of a partition's newest event, or any from `at_least` on; -1 if nothing
    was ever published, None if the log cannot be read (`penstock log verify` reports why)."""
    newest = max(directory.glob("*.log"), default=None)
    if newest is None:
        return -1
    last = -1
    try:
        for item in dump_segment(newest):
            if isinstance(item, SegmentHeader):
                last = item.first_sequence - 1
            elif isinstance(item, RecordHeader):
                last = item.next_sequence - 1
            if last >= at_least:
                break
    except (OSError, PenstockError):
        return None
    return last


def _check_listener(listener: str, host: str, port: int) -> Finding:
    try:
        with socket.create_connection((host, port), timeout=_CONNECT_S):
            return Finding(f"listener {listener}", State.OK, f"{host}:{port} answers")
    except OSError as error:
        text = f"{host}:{port} does not answer ({error})"
        return Finding(f"listener {listener}", State.FAIL, text)


def _check_port(listener: str, port: int) -> Finding:
    name = f"port {port} ({listener})"
    try:
        with socket.create_server(("127.0.0.1", port)):
            return Finding(name, State.OK, "free")
    except OSError:
        text = f"taken by {_identify_program(port)}; choose another with --{listener}-port"
        return Finding(name, State.WARN, text)


def _identify_program(port: int) -> str:
    """RabbitMQ and similar brokers answer the AMQP 1.0 header with their own version."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=_CONNECT_S) as peer:
            peer.sendall(_AMQP_HEADER)
            answer = peer.recv(8)
    except OSError:
        return "another program"
    if answer.startswith(b"AMQP\x00\x00\x09"):
        return "an AMQP 0-9-1 broker (not Event Hubs' AMQP 1.0)"
    return "another AMQP broker" if answer.startswith(b"AMQP") else "another program"
