"""Every test of this folder runs on each twin of the kernels that is built here."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from types import ModuleType

import pytest

PURE = {
    "append_event": "penstock.kernels._pure.producer_batch",
    "split_batch": "penstock.kernels._pure.publications",
    "split_singles": "penstock.kernels._pure.publications",
    "frame_events": "penstock.kernels._pure.transfer_frames",
    "frame_run": "penstock.kernels._pure.transfer_frames",
    "decode_events": "penstock.kernels._pure.columns",
    "count_steps": "penstock.kernels._pure.steps",
    "scan_transfers": "penstock.amqp.transfer_run",
    "Gatherer": "penstock.kernels._pure.arrow_columns",
    "AvroRows": "penstock.kernels._pure.avro_records",
    "Intake": "penstock.kernels._pure.receive_buffer",
}
COMPILED = dict.fromkeys(PURE, "penstock.kernels._publications") | {
    "scan_transfers": "penstock.amqp._transfer_scanner",
    "Gatherer": "penstock.kernels._arrow_columns",
    "AvroRows": "penstock.kernels._avro_records",
    "Intake": "penstock.kernels._receive_buffer",
}


def _twins() -> dict[str, dict[str, str]]:
    try:
        for module in set(COMPILED.values()):
            importlib.import_module(module)
    except ImportError:
        return {"pure": PURE}
    return {"pure": PURE, "compiled": COMPILED}


TWINS = _twins()


@pytest.fixture(autouse=True, scope="module", params=list(TWINS))
def twin(request: pytest.FixtureRequest) -> Iterator[str]:
    """Put the twin's functions in the place of those that the test file imported."""
    module = request.module
    assert isinstance(module, ModuleType)
    before = {name: vars(module)[name] for name in PURE if name in vars(module)}
    for name in before:
        source = importlib.import_module(TWINS[request.param][name])
        setattr(module, name, getattr(source, name))
    yield request.param
    for name, function in before.items():
        setattr(module, name, function)
