"""The position of a query told to the service: the newest counts, and silence where nobody asks."""

from __future__ import annotations

import threading

import pytest

from penstock.checkpoints.records import GroupNames
from penstock.model.checkpoints import Checkpoint
from penstock.model.errors import CheckpointStoreUnavailable
from penstock.spark.eventhubs.checkpoint_reporter import (
    CheckpointReporter,
    open_checkpoint_reporter,
)
from penstock.spark.eventhubs.options import EventHubsOptions

NAMES = GroupNames("host", "hub", "$Default")


class Store:
    def __init__(self, *, fails: bool = False) -> None:
        self.saved: list[tuple[str, int, str]] = []
        self.fails = fails
        self.closed = threading.Event()

    def save(self, names: GroupNames, checkpoint: Checkpoint) -> None:
        assert names == NAMES
        if self.fails:
            raise CheckpointStoreUnavailable("nobody is there")
        self.saved.append((checkpoint.partition_id, checkpoint.sequence_number, checkpoint.offset))

    def close(self) -> None:
        self.closed.set()


def test_changed_positions_are_saved_as_the_last_event_processed() -> None:
    store = Store()
    told = CheckpointReporter(
        NAMES, lambda: store, lambda partition, number: f"{partition}@{number}"
    )
    told.report({"0": 0, "1": 10})
    assert told.flush()
    told.report({"0": 5, "1": 10})
    told.close()
    assert store.saved == [("0", -1, "-1"), ("1", 9, "1@9"), ("0", 4, "0@4")]
    assert store.closed.is_set()


def test_an_event_that_is_gone_leaves_its_number() -> None:
    store = Store()
    told = CheckpointReporter(NAMES, lambda: store, lambda partition, number: None)
    told.report({"0": 7})
    told.close()
    assert store.saved == [("0", 6, "-1")]


def test_a_service_without_such_a_store_is_asked_seldom() -> None:
    store, clock_s = Store(fails=True), [100.0]
    told = CheckpointReporter(
        NAMES, lambda: store, lambda p, n: "x", monotonic_s=lambda: clock_s[0]
    )
    told.report({"0": 1})
    assert told.flush(), "given up for now"
    store.fails = False
    told.report({"0": 2})
    assert told.flush()
    assert store.saved == []
    clock_s[0] += 31
    told.report({"0": 3})
    told.close()
    assert store.saved == [("0", 2, "x")]


@pytest.mark.parametrize(
    ("is_penstock", "more", "is_told"),
    [
        (True, {}, True),
        (True, {"commitToService": "false"}, False),
        (False, {}, False),
        (False, {"https.url": "https://penstock:8443"}, True),
    ],
)
def test_azures_own_service_is_left_alone(
    is_penstock: bool, more: dict[str, str], is_told: bool
) -> None:
    text = "Endpoint=sb://host;SharedAccessKeyName=n;SharedAccessKey=aw==;EntityPath=hub"
    made = open_checkpoint_reporter(
        EventHubsOptions({"connectionString": text} | more).read(),
        lambda p, n: None,
        is_penstock=lambda: is_penstock,
    )
    assert (made is not None) is is_told
    if made is not None:
        made.close()


def test_position_that_cannot_be_reported_is_one_warning_with_the_remedy(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now_s = [0.0]
    reporter = CheckpointReporter(
        NAMES, lambda: Store(fails=True), lambda *_: "1", monotonic_s=lambda: now_s[0]
    )
    with caplog.at_level("INFO", logger="penstock.spark"):
        for position in (1, 2):
            reporter.report({"0": position})
            assert reporter.flush()
            now_s[0] += 3600.0 if position == 1 else 0.0  # the next attempt is due
        reporter.close()
    levels = [record.levelname for record in caplog.records]
    assert levels[0] == "WARNING" and set(levels[1:]) == {"INFO"}
    text = caplog.records[0].getMessage()
    assert "https.url" in text and "tls.caFile" in text and "nobody is there" in text
