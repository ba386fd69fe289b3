"""Random histories on disk against a plain list: whatever is done, the log says what the list says.

Small segments and small read sizes put every border in the way of every operation.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from queue import Empty, SimpleQueue

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.log.embedded.files import Files
from penstock.log.embedded.partition import EmbeddedPartition
from penstock.log.embedded.store import EmbeddedLogStore
from penstock.model.errors import ArgumentError, PenstockError
from penstock.model.events import EventBatch, ProducerStamp, Receipt, StoredBatch
from penstock.model.positions import Position, PositionKind

DEADLINE_S = 20


class QuickFiles(Files):
    def fdatasync(self, fd: int) -> None:
        pass

    def fsync_directory(self, path: Path) -> None:
        pass


class LogMachine(RuleBasedStateMachine):
    """`batches` is the model: everything ever committed, in order."""

    @initialize(segment_bytes=st.sampled_from([300, 1000, 5000, 1 << 26]))
    def begin(self, segment_bytes: int) -> None:
        self.directory = Path(tempfile.mkdtemp())
        self.segment_bytes = segment_bytes
        self.batches: list[StoredBatch] = []
        self.stamps: dict[int, ProducerStamp] = {}
        self.now_ms = 1_000_000
        self.begin_sequence = 0
        self.open()

    def open(self) -> None:
        self.turns: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self.store = EmbeddedLogStore(
            self.directory,
            wake=self.turns.put,
            files=QuickFiles(),
            segment_bytes=self.segment_bytes,
            tail_cache_bytes=2000,
        )
        log = self.store.partition("hub", 0)
        assert isinstance(log, EmbeddedPartition)
        self.log = log

    @rule(
        sizes=st.lists(
            st.lists(st.integers(0, 400), min_size=1, max_size=4), min_size=1, max_size=6
        ),
        producer_id=st.none() | st.integers(0, 3),
        step_ms=st.integers(-5, 20),
    )
    def append(self, sizes: list[list[int]], producer_id: int | None, step_ms: int) -> None:
        self.now_ms += step_ms
        outcomes: list[Receipt | PenstockError] = []
        sent: list[EventBatch] = []
        for events in sizes:
            stamp = None
            if producer_id is not None:
                number = len(self.batches) + len(sent)
                stamp = self.stamps[producer_id] = ProducerStamp(producer_id, 0, number, number)
            sections = b"".join(
                b"\x00\x53\x75\xb0" + size.to_bytes(4, "big") + bytes([size % 251]) * size
                for size in events
            )
            sent.append(EventBatch(sections, len(events), producer=stamp))
            self.log.append(sent[-1], now_ms=self.now_ms, done=outcomes.append)
        while len(outcomes) < len(sent):
            self.turns.get(timeout=DEADLINE_S)()
        for batch, receipt in zip(sent, outcomes, strict=True):
            assert isinstance(receipt, Receipt)
            self.batches.append(
                StoredBatch(
                    receipt.first_sequence,
                    receipt.base_offset,
                    receipt.enqueued_ms,
                    batch.count,
                    batch.sections,
                )
            )

    @rule()
    def restart(self) -> None:
        self.store.close()
        self.open()

    @rule(keeps_indexes=st.booleans())
    def crash(self, keeps_indexes: bool) -> None:
        """The next process finds what is on disk at this moment."""
        image = self.directory.with_name(self.directory.name + "-crashed")
        shutil.copytree(self.directory, image)
        self.store.close()
        shutil.rmtree(self.directory)
        image.rename(self.directory)
        if not keeps_indexes:
            for path in self.directory.rglob("*.index"):
                path.unlink()
        self.open()

    @rule(age_ms=st.integers(0, 60))
    def retain(self, age_ms: int) -> None:
        self.store.enforce_retention("hub", retention_ms=age_ms, now_ms=self.now_ms)
        self.store.close()
        try:
            while True:
                self.turns.get_nowait()()
        except Empty:
            pass
        self.open()
        status = self.log.status()
        oldest_ms = self.now_ms - age_ms
        young = [b for b in self.batches if b.enqueued_ms >= oldest_ms]
        begin = status.begin_sequence if not status.is_empty else status.last_sequence + 1
        if young:
            assert begin <= max(self.begin_sequence, young[0].first_sequence)
        elif self.batches:
            assert status.is_empty
        assert begin >= self.begin_sequence
        self.begin_sequence = begin

    @precondition(lambda self: self.batches)
    @rule(data=st.data())
    def read(self, data: st.DataObject) -> None:
        sequence = data.draw(st.integers(0, self.batches[-1].next_sequence + 1))
        bytes_max = data.draw(st.sampled_from([0, 100, 1000, 1 << 20]))
        wanted = max(sequence, self.begin_sequence)
        expected = [b for b in self.batches if b.next_sequence > wanted]
        found = self.log.read(sequence, bytes_max=bytes_max)
        assert found == expected[: len(found)]
        assert bool(found) == bool(expected)
        if found and len(found) < len(expected):
            size = sum(len(b.sections) for b in expected[: len(found) + 1])
            assert size > bytes_max
        cached = self.log.read_cached(sequence)
        if cached is not None:
            assert cached == expected[: len(cached)]
            assert bool(cached) == bool(expected)

    @precondition(lambda self: self.batches)
    @rule(
        data=st.data(),
        kind=st.sampled_from(
            [PositionKind.OFFSET, PositionKind.SEQUENCE, PositionKind.ENQUEUED_TIME]
        ),
        inclusive=st.booleans(),
    )
    def locate(self, data: st.DataObject, kind: PositionKind, inclusive: bool) -> None:
        keys = [self._key(kind, batch, i) for batch in self.batches for i in range(batch.count)]
        value = data.draw(st.integers(keys[0] - 5, keys[-1] + 5) | st.sampled_from(keys))
        position = Position(kind, value, inclusive)
        if kind is not PositionKind.ENQUEUED_TIME and value > keys[-1]:
            with pytest.raises(ArgumentError):
                self.log.locate(position)
            return
        wanted = [n for n, key in enumerate(keys) if key > value or (inclusive and key == value)]
        expected = max(self.begin_sequence, wanted[0] if wanted else len(keys))
        assert self.log.locate(position) == expected

    @staticmethod
    def _key(kind: PositionKind, batch: StoredBatch, index: int) -> int:
        if kind is PositionKind.SEQUENCE:
            return batch.first_sequence + index
        if kind is PositionKind.ENQUEUED_TIME:
            return batch.enqueued_ms
        position = 0
        for _ in range(index):
            position += 8 + int.from_bytes(batch.sections[position + 4 : position + 8], "big")
        return batch.base_offset + position

    @invariant()
    def status_follows(self) -> None:
        status = self.log.status()
        if not self.batches:
            assert status.last_sequence == status.last_offset == -1
            return
        newest = self.batches[-1]
        assert status.last_sequence == newest.next_sequence - 1
        assert status.last_enqueued_ms == newest.enqueued_ms
        assert status.last_offset == self._key(PositionKind.OFFSET, newest, newest.count - 1)
        assert {n: self.log.producer(n) for n in self.stamps} == self.stamps
        assert self.log.damage == ()

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()
            shutil.rmtree(self.directory)


LogMachine.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestLogHistories = LogMachine.TestCase
