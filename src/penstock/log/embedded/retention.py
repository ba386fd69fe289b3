"""Retention: which segments expire, when a slow partition's segment is rolled, removal of files.

Whole segments expire, never single events. A pass over a hub (`Retention.enforce`) runs on the
owner's thread and only decides; the committer and its helpers do the disk work:

| step | thread |
|---|---|
| choose expired segments, take them out of the committed view | owner |
| roll the active segment of a slow partition, or write its log mark | committer |
| after a roll: choose expired segments again | owner |
| remove the files of expired segments | helper |

Readers that still hold an older view get FileNotFoundError for a removed file and retry with the
current view (`EmbeddedPartition._with_current_view`).
"""

from __future__ import annotations

from functools import partial

from penstock.log.embedded.committer import Committer
from penstock.log.embedded.file_handles import FileHandleCache
from penstock.log.embedded.files import Files, unlink_if_exists
from penstock.log.embedded.partition import EmbeddedPartition
from penstock.log.embedded.reader import CommittedView, SegmentIndexes
from penstock.log.embedded.segment import INDEX_SUFFIX, PRODUCERS_SUFFIX, SEGMENT_SUFFIX, Segment

_ROLL_AT_FRACTION = 4  # of the retention: an event outlives it by a quarter at most


def count_expired(view: CommittedView, oldest_ms: int) -> int:
    """Number of closed segments, oldest first, whose newest event is older than `oldest_ms`."""
    closed = view.segments[:-1]
    for number, segment in enumerate(closed):
        if segment.end is None or segment.end.newest_ms >= oldest_ms:
            return number
    return len(closed)


def segment_to_roll(view: CommittedView, *, retention_ms: int, now_ms: int) -> Segment | None:
    """The active segment, if its oldest event is older than a quarter of the retention. Without
    the roll, a partition with little traffic would keep one segment, and all its events, forever.
    """
    if not view.segments or view.end_offset == view.segments[-1].header.base_offset:
        return None
    active = view.segments[-1]
    oldest_ms = None if active.index is None else active.index.oldest_ms
    if oldest_ms is None or oldest_ms >= now_ms - retention_ms // _ROLL_AT_FRACTION:
        return None
    return active


class Retention:
    """Enforces retention on the partitions of one store."""

    def __init__(
        self,
        files: Files,
        handles: FileHandleCache,
        indexes: SegmentIndexes,
        committer: Committer,
        *,
        is_durable: bool,
    ) -> None:
        self._files = files
        self._handles = handles
        self._indexes = indexes
        self._committer = committer
        self._is_durable = is_durable

    def enforce(self, partition: EmbeddedPartition, *, retention_ms: int, now_ms: int) -> int:
        """Expire the partition's old segments; returns the bytes freed. Also drops old batches from
        the tail cache and, in a partition that grew since the last pass, writes a log mark so that
        recovery has less to scan. Owner's thread; never blocks."""
        oldest_ms = now_ms - retention_ms
        partition.shrink_cache(now_ms)
        freed = self._expire(partition, oldest_ms)
        active = segment_to_roll(partition.view, retention_ms=retention_ms, now_ms=now_ms)
        if active is not None:
            self._committer.run_on_committer(partial(self._roll, partition, active, oldest_ms))
            if partition.view.newest_ms < oldest_ms:
                freed += partition.view.size_bytes  # expires as soon as it is rolled
        elif self._is_durable:
            self._committer.run_on_committer(partition.writer.write_mark)
        return freed

    def forget(self, segments: tuple[Segment, ...]) -> None:
        """Close the files of removed segments and drop their indexes from memory. Any thread."""
        for segment in segments:
            self._handles.forget(segment)
            self._indexes.forget(segment)

    def _expire(self, partition: EmbeddedPartition, oldest_ms: int) -> int:
        """Owner's thread. Returns the bytes freed."""
        expired = partition.drop_oldest(count_expired(partition.view, oldest_ms))
        if not expired:
            return 0
        self._committer.run_on_helper(partial(self._remove_files, expired))
        return sum(
            segment.end.offset - segment.header.base_offset
            for segment in expired
            if segment.end is not None
        )

    def _roll(self, partition: EmbeddedPartition, active: Segment, oldest_ms: int) -> None:
        """Committer's thread. `active` may have been rolled by a commit round since."""
        outcome = partition.writer.roll(active)
        if outcome.new_segments or outcome.error is not None:
            self._committer.run_on_owner(partial(partition.apply_outcome, outcome))
        if outcome.new_segments:
            self._committer.run_on_owner(partial(self._expire, partition, oldest_ms))

    def _remove_files(self, segments: tuple[Segment, ...]) -> None:
        """Helper thread. Oldest segment first and its records last: a crash in between leaves a log
        without a gap. The index is removed twice because a reader may rebuild it until the records
        are gone (`SegmentIndexes`)."""
        for segment in segments:
            for suffix in (INDEX_SUFFIX, PRODUCERS_SUFFIX, SEGMENT_SUFFIX, INDEX_SUFFIX):
                unlink_if_exists(self._files, segment.beside(suffix))
        self.forget(segments)
        self._files.fsync_directory(segments[0].path.parent)
