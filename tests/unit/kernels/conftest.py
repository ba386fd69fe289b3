"""Every test of this folder runs on each implementation of the kernels that is built here."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from types import ModuleType

import pytest

PURE = {
    "append_bodies": "penstock.kernels._pure.producer_batch",
    "append_event": "penstock.kernels._pure.producer_batch",
    "split_batch": "penstock.kernels._pure.publications",
    "split_singles": "penstock.kernels._pure.publications",
    "count_metered_events": "penstock.kernels._pure.publications",
    "frame_events": "penstock.kernels._pure.transfer_frames",
    "frame_run": "penstock.kernels._pure.transfer_frames",
    "decode_events": "penstock.kernels._pure.columns",
    "scan_transfers": "penstock.amqp.transfer_run",
    "ArrowColumnBuilder": "penstock.kernels._pure.arrow_columns",
    "AvroRecordWriter": "penstock.kernels._pure.avro_records",
    "ReceiveBuffer": "penstock.kernels._pure.receive_buffer",
}
COMPILED = {name: module.replace("._pure.", "._") for name, module in PURE.items()} | {
    "scan_transfers": "penstock.amqp._transfer_scanner",
}


def _find_implementations() -> dict[str, dict[str, str]]:
    try:
        for module in set(COMPILED.values()):
            importlib.import_module(module)
    except ImportError:
        return {"pure": PURE}
    return {"pure": PURE, "compiled": COMPILED}


IMPLEMENTATIONS = _find_implementations()


@pytest.fixture(autouse=True, scope="module", params=list(IMPLEMENTATIONS))
def implementation(request: pytest.FixtureRequest) -> Iterator[str]:
    """Replace the kernels that the test file imported by those of one implementation."""
    module = request.module
    assert isinstance(module, ModuleType)
    before = {name: vars(module)[name] for name in PURE if name in vars(module)}
    for name in before:
        source = importlib.import_module(IMPLEMENTATIONS[request.param][name])
        setattr(module, name, getattr(source, name))
    yield request.param
    for name, function in before.items():
        setattr(module, name, function)
