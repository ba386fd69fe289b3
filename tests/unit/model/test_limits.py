"""Relations between limits. Kernels repeat some limits as constants of their own; the compiled
kernels use those of the pure ones."""

from __future__ import annotations

import pytest

from penstock.kernels._pure import producer_batch, publications
from penstock.model import limits


@pytest.mark.parametrize(
    ("value", "limit"),
    [
        (publications._EVENTS_MAX, limits.BATCH_EVENTS_MAX),
        (publications._BATCH_BYTES_MAX, limits.RECORD_PAYLOAD_BYTES_MAX),
        (publications._SINGLES_BYTES, limits.KERNEL_COALESCED_BYTES),
    ],
)
def test_kernels_have_the_limits_of_the_model(value: int, limit: int) -> None:
    assert value == limit


def test_producer_kernel_has_the_limit_of_the_model() -> None:
    assert producer_batch.EVENT_BYTES_MAX == limits.KERNEL_EVENT_BYTES_MAX


def test_limits_fit_together() -> None:
    # Canonical form makes a publication larger, hence the factor 2. A client that knows no limit
    # must not build batches that every namespace refuses.
    assert (
        limits.PUBLICATION_BYTES_STANDARD
        <= limits.PUBLICATION_BYTES_CURRENT
        <= limits.PUBLICATION_BYTES_DEDICATED
    )
    assert 2 * limits.PUBLICATION_BYTES_DEDICATED <= limits.RECORD_PAYLOAD_BYTES_MAX
    assert (
        limits.KERNEL_COALESCED_BYTES + 2 * limits.PUBLICATION_BYTES_DEDICATED
        < limits.RECORD_PAYLOAD_BYTES_MAX
    )
    assert (
        limits.CLIENT_MESSAGE_BYTES_MAX
        <= limits.PUBLICATION_BYTES_DEDICATED
        < limits.KERNEL_EVENT_BYTES_MAX
    )
    assert limits.FRAME_BYTES_MIN < limits.FRAME_BYTES_MAX_BEFORE_OPEN < limits.FRAME_BYTES_MAX
    assert limits.RECORD_PAYLOAD_BYTES_MAX < limits.SEGMENT_BYTES
    assert limits.PARTITION_COUNT_MAX < limits.PARTITION_COUNT_GRANTED_MAX
    assert limits.THROUGHPUT_UNITS_MAX < limits.THROUGHPUT_UNITS_GRANTED_MAX
    assert limits.PUBLICATION_BYTES_DEDICATED <= limits.UNSETTLED_BYTES_PER_CONNECTION_MAX
    assert (
        limits.HTTP_BATCH_FACTOR * limits.PUBLICATION_BYTES_DEDICATED < limits.HTTP_HELD_BYTES_MAX
    )
    assert limits.IDLE_TIME_OUT_MS > 2 * limits.OPEN_DEADLINE_MS
    assert limits.BACKOFF_MS_MAX < limits.OPEN_DEADLINE_MS  # SASL's outcome still comes in time
    assert (
        limits.UNAUTHENTICATED_PER_ADDRESS_MAX
        <= limits.UNAUTHENTICATED_MAX
        < limits.CONNECTIONS_PER_ADDRESS_MAX
    )
    assert limits.CONNECTIONS_PER_ADDRESS_MAX < limits.CONNECTIONS_PER_NAMESPACE_MAX
    assert (
        limits.WORK_QUEUE_SLICE_US
        < limits.WORK_QUEUE_BURST_US
        < limits.WORK_BURST_US
        < limits.WORK_DEBT_US_MAX
    )
    assert limits.WORK_QUEUE_BURST_US < limits.WORK_QUEUE_DEBT_US_MAX
    assert limits.UNAUTHENTICATED_MAX < limits.WORK_WAITING_MAX
