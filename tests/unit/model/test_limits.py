"""Kernels repeat some limits as constants of their own; the compiled kernels use those of the pure
ones."""

from __future__ import annotations

import pytest

from penstock.kernels._pure import producer_batch, publications
from penstock.model import limits


@pytest.mark.parametrize(
    ("value", "limit"),
    [
        (publications._EVENTS_MAX, limits.KERNEL_BATCH_EVENTS_MAX),
        (publications._BATCH_BYTES_MAX, limits.KERNEL_BATCH_BYTES_MAX),
        (publications._SINGLES_BYTES, limits.KERNEL_COALESCED_BYTES),
    ],
)
def test_kernels_have_the_limits_of_the_model(value: int, limit: int) -> None:
    assert value == limit


def test_producer_kernel_has_the_limit_of_the_model() -> None:
    assert producer_batch.EVENT_BYTES_MAX == limits.KERNEL_EVENT_BYTES_MAX
