"""Warnings that repeat are thinned out, facts are not."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator

import pytest

from penstock.model.clock import ManualClock
from penstock.service import logging_setup


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def written(clock: ManualClock) -> Iterator[io.StringIO]:
    stream = io.StringIO()
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    logging_setup.set_up("info", clock.monotonic_ms, stream)
    yield stream
    root.handlers[:], root.level = handlers, level
    for chatty in ("uvicorn", "asyncio", "websockets"):
        logging.getLogger(chatty).setLevel(logging.NOTSET)


def test_flood_of_one_warning_is_cut_and_counted(clock: ManualClock, written: io.StringIO) -> None:
    logger = logging.getLogger("penstock.test")
    for number in range(1000):
        logger.warning("protocol error: peer=%s", number)
    assert written.getvalue().count("protocol error") == logging_setup.BURST
    clock.advance(logging_setup.PERIOD_MS)
    logger.warning("protocol error: peer=%s", "last")
    last = written.getvalue().splitlines()[-1]
    assert "peer=last" in last
    assert "980 more like it were left out" in last


def test_other_warnings_are_not_hidden_by_a_flood(written: io.StringIO) -> None:
    logger = logging.getLogger("penstock.test")
    for _ in range(1000):
        logger.warning("one")
    logger.error("two")
    assert "two" in written.getvalue()


def test_facts_are_never_thinned(written: io.StringIO) -> None:
    logger = logging.getLogger("penstock.test")
    for _ in range(100):
        logger.info("connection ended")
    assert written.getvalue().count("connection ended") == 100


def test_memory_is_bounded_whatever_is_logged(clock: ManualClock) -> None:
    thinning = logging_setup.RepeatLimit(clock.monotonic_ms)
    for number in range(5000):
        record = logging.makeLogRecord({"levelno": logging.WARNING, "msg": f"template {number}"})
        assert thinning.filter(record)
    assert len(thinning._seen) <= 1025
