"""Relations between limits. Kernels repeat some limits as constants of their own; the compiled
kernels use those of the pure ones."""

from __future__ import annotations

import re
from pathlib import Path

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


PAGE = Path(__file__).parents[3] / "docs" / "guides" / "production.md"
MB, KB = limits.MB, limits.KB
DOCUMENTED = {
    "Publication: one": (
        limits.PUBLICATION_BYTES_STANDARD // KB,
        limits.PUBLICATION_BYTES_CURRENT // MB,
    ),
    "Partitions of an event hub": (
        *(limits.PARTITION_COUNT_MIN, limits.PARTITION_COUNT_MAX),
        *(limits.PARTITION_COUNT_MIN_CURRENT, limits.PARTITION_COUNT_MAX),
        limits.PARTITION_COUNT_GRANTED_MAX,
    ),
    "Consumer groups": (limits.CONSUMER_GROUPS_MAX,),
    "Readers of a partition": (limits.SHARED_READERS_MAX, 1),
    "Retention": (limits.RETENTION_HOURS_MIN, limits.RETENTION_HOURS_MAX),
    "Shared access policies": (limits.AUTHORIZATION_RULES_MAX, limits.AUTHORIZATION_RULES_MAX),
    "Throughput units": (
        *(limits.THROUGHPUT_UNITS_MIN, limits.THROUGHPUT_UNITS_MAX),
        limits.THROUGHPUT_UNITS_GRANTED_MAX,
    ),
    "One throughput unit": (
        limits.UNIT_INGRESS_BYTES_PER_S // MB,
        limits.UNIT_INGRESS_EVENTS_PER_S,
        limits.UNIT_EGRESS_BYTES_PER_S // MB,
    ),
    "Partition key": (limits.PARTITION_KEY_MAX,),
    "Events of a publication": (limits.BATCH_EVENTS_MAX,),
    "Idempotent producers": (limits.PRODUCERS_PER_PARTITION_MAX,),
    "Revoked publishers": (limits.REVOKED_PUBLISHERS_MAX,),
    "AMQP connections": (limits.CONNECTIONS_PER_NAMESPACE_MAX,),
    "Connections from one address": (
        limits.CONNECTIONS_PER_ADDRESS_MAX,
        limits.UNAUTHENTICATED_PER_ADDRESS_MAX,
    ),
    "Links of a connection": (limits.LINKS_PER_CONNECTION_MAX,),
    "HTTPS connections": (limits.HTTP_CONNECTIONS_MAX,),
    "HTTPS bodies": (limits.HTTP_HELD_BYTES_MAX // MB,),
    "Publications in memory": (
        limits.UNSETTLED_BYTES_MAX // MB,
        limits.UNSETTLED_BYTES_PER_CONNECTION_MAX // MB,
    ),
    "Management API": (limits.MANAGEMENT_REQUESTS_PER_S, limits.MANAGEMENT_REQUESTS_BURST),
    "Runtime information": (limits.MANAGEMENT_CALLS_PER_S,),
    "SAS token": (limits.SAS_TOKEN_BYTES_MAX // KB,),
    "Time that a link": (limits.EXPIRY_GRACE_S, limits.EXPIRY_GRACE_S_MAX),
}


def test_page_on_production_states_the_limits_of_the_model() -> None:
    section = PAGE.read_text().partition("\n## Limits\n")[2].partition("\n## ")[0]
    rows = [re.findall(r"[^|]+", line) for line in section.splitlines() if line.startswith("| ")]
    stated = {cells[0].strip(): " ".join(cells[1:]).replace(",", "") for cells in rows[1:]}
    assert len(stated) == len(DOCUMENTED) + 1  # one row says that there is no limit
    for name, numbers in DOCUMENTED.items():
        (text,) = [text for row, text in stated.items() if row.startswith(name)]
        assert tuple(map(int, re.findall(r"\d+", text))) == numbers, name
