"""Kernels repeat some limits as their own constants: both implementations must agree with them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from penstock import kernels
from penstock.kernels._pure import producer_batch, publications
from penstock.model import limits

COMPILED = Path(kernels.__file__).with_name("_publications.pyx")
SOURCES = {"pure": Path(publications.__file__), "compiled": COMPILED}


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize(
    ("name", "limit"),
    [
        ("EVENTS_MAX", limits.KERNEL_BATCH_EVENTS_MAX),
        ("BATCH_BYTES_MAX", limits.KERNEL_BATCH_BYTES_MAX),
        ("SINGLES_BYTES", limits.KERNEL_COALESCED_BYTES),
    ],
)
def test_kernels_have_the_limits_of_the_model(source: str, name: str, limit: int) -> None:
    text = SOURCES[source].read_text()
    (product,) = re.findall(rf"^(?:cdef Py_ssize_t |_){name} = ([0-9_* ]+)", text, re.MULTILINE)
    value = 1
    for factor in product.split("*"):
        value *= int(factor)
    assert value == limit


def test_producer_kernel_has_the_limit_of_the_model() -> None:
    assert producer_batch.EVENT_BYTES_MAX == limits.KERNEL_EVENT_BYTES_MAX
