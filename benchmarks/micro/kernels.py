"""What one CPU second buys in each kernel: `python -m benchmarks.micro.kernels [seconds]`.

Events per CPU second (user + system time of this process), median of five, so that neighbours on
the machine disturb little. The bytes are laid out as the official Python SDK lays them out.
"""

from __future__ import annotations

import importlib
import statistics
import struct
import sys
import time
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

from penstock.amqp import transfer_run
from penstock.kernels._pure import (
    arrow_columns,
    avro_records,
    columns,
    publications,
    transfer_frames,
)

_EVENTS = 100
_ROUNDS = 5

Case = tuple[str, Callable[[], object]]


class Kernel:
    """The kernels of one implementation."""

    def __init__(self, *modules: ModuleType) -> None:
        names = (
            "split_batch", "split_singles", "frame_events", "decode_events", "scan_transfers",
            "ArrowColumnBuilder", "AvroRecordWriter",
        )  # fmt: skip
        self._functions: dict[str, Callable[..., Any]] = {
            name: getattr(module, name) for module in modules for name in names
            if hasattr(module, name)
        }  # fmt: skip

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return self._functions[name]


def find_implementations() -> dict[str, Kernel]:
    """The implementations that are built here."""
    pure = Kernel(publications, transfer_frames, columns, transfer_run, arrow_columns, avro_records)
    try:
        modules = (
            "kernels._publications",
            "kernels._transfer_frames",
            "kernels._columns",
            "kernels._arrow_columns",
            "kernels._avro_records",
            "amqp._transfer_scanner",
        )
        built = [importlib.import_module(f"penstock.{module}") for module in modules]
        return {"pure": pure, "compiled": Kernel(*built)}
    except ImportError:
        return {"pure": pure}


def data_section(body: bytes) -> bytes:
    if len(body) <= 0xFF:
        return b"\x00\x53\x75\xa0" + bytes((len(body),)) + body
    return b"\x00\x53\x75\xb0" + struct.pack(">I", len(body)) + body


def string(text: str) -> bytes:
    return b"\xa1" + bytes((len(text),)) + text.encode()


def symbol(text: str) -> bytes:
    return b"\xa3" + bytes((len(text),)) + text.encode()


def map8(code: int, *items: bytes) -> bytes:
    body = b"".join(items)
    return bytes((0, 0x53, code, 0xC1, len(body) + 1, len(items))) + body


KEY = map8(0x72, symbol("x-opt-partition-key"), string("device-17"))


def rich_message(number: int, body: bytes) -> bytes:
    """A partition key, message-id and content-type, three application properties."""
    fields = string(f"6f0c2b7e-{number:04}") + b"\x40" * 5 + symbol("application/json")
    return (
        KEY
        + bytes((0, 0x53, 0x73, 0xC0, len(fields) + 1, 7))
        + fields
        + map8(
            0x74,
            string("sensor"),
            string("temperature"),
            string("unit"),
            string("kelvin"),
            string("reading"),
            b"\x81" + struct.pack(">q", 293_150 + number),
        )
        + data_section(body)
    )


def transfer(delivery_id: int, payload: bytes) -> bytes:
    """Handle, id, 4-byte tag, format 0, settled false, more false, …: 11 fields."""
    fields = (
        b"\x52\x03\x70" + struct.pack(">I", delivery_id) + b"\xa0\x04"
        + struct.pack(">I", delivery_id) + b"\x43\x42\x42\x40\x40\x42\x42\x42"
    )  # fmt: skip
    performative = b"\x00\x53\x14\xc0" + bytes((len(fields) + 1, 11)) + fields
    size = 8 + len(performative) + len(payload)
    return struct.pack(">IHH", size, 0x0200, 1) + performative + payload


def rate(work: Callable[[], object], events: int, seconds: float) -> float:
    """Median of events per CPU second."""
    work()
    figures = []
    for _ in range(_ROUNDS):
        done = 0
        began = time.process_time()
        while (spent := time.process_time() - began) < seconds / _ROUNDS:
            for _ in range(5):
                work()
            done += 5 * events
        figures.append(done / spent)
    return statistics.median(figures)


def deliver(kernel: Kernel, sections: bytes) -> bytes:
    framed = kernel.frame_events(
        sections,
        0,
        events_max=10_000,
        frames_max=10_000,
        bytes_max=1 << 24,
        channel=1,
        handle=3,
        delivery_id=1_000,
        frame_bytes_max=65_536,
        sequence=123_456,
        base_offset=987_654_321,
        enqueued_ms=1_700_000_000_000,
        runtime=b"",
    )
    return bytes(framed.data)


def payloads(frames: bytes) -> list[int]:
    bounds = []
    position = 0
    while position < len(frames):
        stop = position + struct.unpack_from(">I", frames, position)[0]
        bounds += [position + 13 + frames[position + 12], stop]
        position = stop
    return bounds


def scan(kernel: Kernel, frames: bytes) -> list[int]:
    run = kernel.scan_transfers(frames, 0, len(frames), frame_bytes_max=65_536)
    assert run is not None and run.count == _EVENTS
    bounds: list[int] = run.bounds
    return bounds


def scan_and_split(kernel: Kernel, frames: bytes) -> object:
    return kernel.split_singles(frames, scan(kernel, frames))


def add_and_take(rows: Any, data: bytes, bounds: list[int]) -> object:
    rows.add(data, bounds)
    return rows.take()


def cases(kernel: Kernel) -> list[Case]:
    table: list[Case] = []
    shapes = {
        "100 B": [data_section(b"x" * 100)] * _EVENTS,
        "1 KB": [data_section(b"x" * 1024)] * _EVENTS,
        "rich 100 B": [rich_message(i, b"x" * 100) for i in range(_EVENTS)],
    }
    for name, messages in shapes.items():
        sections = b"".join(map(data_section, messages))
        batch = (KEY if name.startswith("rich") else b"") + sections
        frames = b"".join(transfer(1_000 + i, message) for i, message in enumerate(messages))
        delivered = deliver(kernel, sections)
        bounds, spans = scan(kernel, frames), payloads(delivered)
        builder, writer = kernel.ArrowColumnBuilder(repr), kernel.AvroRecordWriter(bytes)
        split = partial(kernel.split_batch, batch, 0, len(batch))
        table += [
            (f"split batch      {name}", split),
            (f"split publisher  {name}", partial(split, publisher="device-17")),
            (f"split singles    {name}", partial(kernel.split_singles, frames, bounds)),
            (f"scan             {name}", partial(scan, kernel, frames)),
            (f"scan and split   {name}", partial(scan_and_split, kernel, frames)),
            (f"frame            {name}", partial(deliver, kernel, sections)),
            (f"decode           {name}", partial(kernel.decode_events, delivered, spans)),
            (f"Arrow columns    {name}", partial(add_and_take, builder, delivered, spans)),
            (f"Avro records     {name}", partial(add_and_take, writer, delivered, spans)),
        ]
    return sorted(table, key=lambda row: row[0][:16])


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 1.0
    kernels = find_implementations()
    print(f"k events per CPU second, {_EVENTS} events a call")
    print(f"{'':<30}" + "".join(f"{name:>10}" for name in kernels))
    for rows in zip(*map(cases, kernels.values()), strict=True):
        figures = [rate(work, _EVENTS, seconds) / 1000 for _, work in rows]
        print(f"{rows[0][0]:<30}" + "".join(f"{figure:>10,.0f}" for figure in figures))


if __name__ == "__main__":
    main()
