"""The machine's own ceilings, taken in the same run as everything that is compared with them."""

from __future__ import annotations

import os
import platform
import socket
import statistics
import threading
import time
from pathlib import Path

from benchmarks.systems.process import BROKER_CORE, GENERATOR_CORE

KB, MB = 1024, 1024 * 1024
_LOOPBACK_BYTES = 256 * MB


def about() -> dict[str, object]:
    """What was measured on, for whoever reads the figures later."""
    memory_kb = int(Path("/proc/meminfo").read_text().split()[1])
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "memory_gb": round(memory_kb / MB, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_average": round(os.getloadavg()[0], 2),
        "cores_shared": BROKER_CORE == GENERATOR_CORE,
    }


def ceilings(place: Path) -> dict[str, float]:
    """fdatasync of small, middle and large appends; loopback in writes of 64 KB."""
    counts = {4: 100, 256: 50, 1024: 30}
    found: dict[str, float] = {}
    for size_kb, count in counts.items():
        took_ms = _fdatasync_ms(place, size_kb * KB, count)
        found[f"fdatasync_{size_kb}kb_p50_ms"] = round(took_ms, 3)
        found[f"fdatasync_{size_kb}kb_mb_per_s"] = round(size_kb / KB * 1000 / took_ms, 1)
    found["loopback_64kb_mb_per_s"] = round(_loopback(), 1)
    return found


def _fdatasync_ms(place: Path, size: int, count: int) -> float:
    data, took = b"x" * size, []
    probe = place / "probe"
    with probe.open("wb", buffering=0) as file:
        for _ in range(count):
            started_s = time.perf_counter()
            file.write(data)
            os.fdatasync(file.fileno())
            took.append((time.perf_counter() - started_s) * 1000)
    probe.unlink()
    return statistics.median(took)


def _loopback() -> float:
    """MB/s from this core to the broker's."""
    listener = socket.create_server(("127.0.0.1", 0))

    def drain() -> None:
        os.sched_setaffinity(threading.get_native_id(), {BROKER_CORE})
        connection, _ = listener.accept()
        buffer = bytearray(256 * KB)
        with connection:
            while connection.recv_into(buffer):
                pass

    thread = threading.Thread(target=drain)
    thread.start()
    chunk, started_s = b"x" * 64 * KB, time.perf_counter()
    with socket.create_connection(listener.getsockname()) as sender:
        for _ in range(_LOOPBACK_BYTES // len(chunk)):
            sender.sendall(chunk)
    thread.join()
    listener.close()
    return _LOOPBACK_BYTES / MB / (time.perf_counter() - started_s)


def drop_page_cache() -> bool:
    """Only root may: whether it was done."""
    try:
        os.sync()
        Path("/proc/sys/vm/drop_caches").write_text("3\n")
    except OSError:
        return False
    return True
