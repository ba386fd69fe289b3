"""`EmbeddedLogStore`: opens and creates partitions, deletes a hub's log, closes."""

from __future__ import annotations

import logging
import re
import secrets
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Literal

from penstock.log.api import LogHealth
from penstock.log.append import Wake
from penstock.log.embedded.committer import Committer, OnFlush
from penstock.log.embedded.directory import DirectoryLock, check_format
from penstock.log.embedded.file_handles import FileHandleCache
from penstock.log.embedded.files import Files, unlink_if_exists
from penstock.log.embedded.partition import EmbeddedPartition, RefusedPartition
from penstock.log.embedded.partition_loader import load_partition
from penstock.log.embedded.reader import CACHED_READ_BYTES, PartitionReader, SegmentIndexes
from penstock.log.embedded.retention import Retention
from penstock.log.embedded.writer import PartitionWriter
from penstock.log.tail_cache import TailCache, TailCacheBudget
from penstock.model import limits
from penstock.model.errors import ArgumentError, DataDirectoryError, LogCorrupt

_logger = logging.getLogger(__name__)

Flush = Literal["disk", "os"]

_HUB_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_DELETED_PREFIX = ".dropped-"


def _new_salt() -> int:
    return secrets.randbits(32)


def _directory_error(directory: Path, action: str, error: OSError) -> DataDirectoryError:
    return DataDirectoryError(
        f"The data directory {directory} cannot be {action}: {error.strerror}. "
        f"Free space on its disk, change its owner or mode, or name another with --data."
    )


class EmbeddedLogStore:
    """All partitions of one data directory.

    The thread that constructs it is the owner; all methods are for that thread unless they say
    otherwise. `wake` runs a function on the owner's thread and may be called by any thread
    (`loop.call_soon_threadsafe`). With `flush="disk"` an append is acknowledged when it survives a
    power failure; with "os", when it survives the end of this process.
    """

    def __init__(
        self,
        directory: Path,
        *,
        wake: Wake,
        files: Files | None = None,
        flush: Flush = "disk",
        segment_bytes: int = limits.SEGMENT_BYTES,
        tail_cache_bytes: int = limits.TAIL_CACHE_BYTES,
        new_salt: Callable[[], int] = _new_salt,
        on_flush: OnFlush | None = None,
    ) -> None:
        """Raises DataDirectoryError if the directory is in use, has a newer format or cannot be
        used."""
        self._directory = directory
        self._files = files if files is not None else Files()
        self._wake = wake
        self._is_durable = flush == "disk"
        self._segment_bytes = segment_bytes
        self._tail_cache_bytes = tail_cache_bytes
        self._new_salt = new_salt
        try:
            self._files.mkdir(directory)
            self._lock = DirectoryLock(directory)
        except OSError as error:
            raise _directory_error(directory, "created or locked", error) from error
        try:
            check_format(self._files, directory)
            deleted_hubs = self._find_deleted_hubs()
            self._committer = Committer(wake, on_flush=on_flush)
        except (OSError, DataDirectoryError) as error:
            self._lock.release()
            if isinstance(error, DataDirectoryError):
                raise
            raise _directory_error(directory, "used", error) from error
        self._handles = FileHandleCache(self._files)
        self._buffer = memoryview(bytearray(CACHED_READ_BYTES))
        self._indexes = SegmentIndexes(self._files, self._handles)
        self._budget = TailCacheBudget()
        self._retention = Retention(
            self._files, self._handles, self._indexes, self._committer, is_durable=self._is_durable
        )
        # By hub id, so that a retention pass of one hub does not visit all partitions.
        self._partitions: dict[str, dict[int, EmbeddedPartition | RefusedPartition]] = {}
        self._deleted_count = 0
        self._is_closed = False
        for path in deleted_hubs:
            self._committer.run_on_helper(partial(self._remove_hub, path))

    @property
    def pending_bytes(self) -> int:
        """Bytes that were appended and not yet acknowledged or refused."""
        return sum(partition.pending_bytes for partition in self._all_partitions())

    @property
    def damage(self) -> list[str]:
        """Damage that was found when partitions were opened, as texts for an operator."""
        return [text for partition in self._all_partitions() for text in partition.damage]

    def reserve_space(self) -> None:
        """Reserve disk space for the next start. Call it when this start is complete."""
        self._lock.reserve_space()

    def partition(self, hub_id: str, index: int) -> EmbeddedPartition | RefusedPartition:
        partition = self._partitions.get(hub_id, {}).get(index)
        if partition is None:
            partition = self._open(hub_id, index)
            self._partitions.setdefault(hub_id, {})[index] = partition
        return partition

    def drop(self, hub_id: str) -> None:
        for partition in self._partitions.pop(hub_id, {}).values():
            if isinstance(partition, EmbeddedPartition):
                self._committer.run_on_committer(
                    partial(self._retention.forget, partition.cancel())
                )
        # Renamed at once, so that the id is free; a helper removes the files later.
        self._deleted_count += 1
        hub = self._hub_directory(hub_id)
        renamed = (
            self._directory
            / f"{_DELETED_PREFIX}{hub_id}-{self._new_salt():08x}-{self._deleted_count}"
        )
        try:
            self._files.rename(hub, renamed)
        except FileNotFoundError:
            return  # nothing was written
        except OSError as error:
            _logger.error("deleted hub directory not removed path=%s error=%r", hub, str(error))
            return
        self._committer.run_on_helper(partial(self._remove_hub, renamed))

    def enforce_retention(self, hub_id: str, *, retention_ms: int, now_ms: int) -> int:
        return sum(
            self._retention.enforce(partition, retention_ms=retention_ms, now_ms=now_ms)
            for partition in self._open_hub_partitions(hub_id)
        )

    def health(self) -> LogHealth:
        return self._committer.health

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        for partition in self._open_partitions():
            partition.stop("The log is closed.")
            self._committer.run_on_committer(partition.writer.close)
        self._committer.close()
        self._handles.close()
        self._lock.release()

    # --- internal ---------------------------------------------------------------------------------

    def _open(self, hub_id: str, index: int) -> EmbeddedPartition | RefusedPartition:
        directory = self._hub_directory(hub_id) / str(index)
        try:
            loaded = load_partition(self._files, directory, index, new_salt=self._new_salt)
        except (LogCorrupt, OSError) as error:
            reason = str(error)
            if isinstance(error, OSError):
                reason = f"The partition in {directory} cannot be opened: {error}."
            _logger.error("partition refused path=%s reason=%r", directory, reason)
            return RefusedPartition(reason, directory, self._wake)
        writer = PartitionWriter(
            self._files,
            self._handles,
            directory,
            index,
            loaded,
            is_durable=self._is_durable,
            segment_bytes=self._segment_bytes,
        )
        return EmbeddedPartition(
            loaded,
            committer=self._committer,
            writer=writer,
            reader=PartitionReader(self._files, self._handles, self._indexes, self._buffer),
            tail_cache=TailCache(
                self._tail_cache_bytes, self._budget, last_offset=loaded.end.last_offset
            ),
            wake=self._wake,
            is_durable=self._is_durable,
        )

    def _hub_directory(self, hub_id: str) -> Path:
        if _HUB_ID.fullmatch(hub_id) is None:
            raise ArgumentError(f"The hub id {hub_id!r} cannot name a directory.")
        return self._directory / hub_id

    def _all_partitions(self) -> Iterator[EmbeddedPartition | RefusedPartition]:
        for partitions in self._partitions.values():
            yield from partitions.values()

    def _open_partitions(self) -> Iterator[EmbeddedPartition]:
        for partition in self._all_partitions():
            if isinstance(partition, EmbeddedPartition):
                yield partition

    def _open_hub_partitions(self, hub_id: str) -> list[EmbeddedPartition]:
        """All partitions of the hub; those that are only on disk are opened."""
        for name in self._files.listdir(self._hub_directory(hub_id)):
            if name.isascii() and name.isdigit():
                self.partition(hub_id, int(name))
        loaded = self._partitions.get(hub_id, {}).values()
        return [partition for partition in loaded if isinstance(partition, EmbeddedPartition)]

    # --- on a helper thread -----------------------------------------------------------------------

    def _remove_hub(self, path: Path) -> None:
        self._files.fsync_directory(self._directory)  # the renaming is durable from here on
        for name in self._files.listdir(path):
            if not name.isdigit():  # a small file beside the partitions
                unlink_if_exists(self._files, path / name)
                continue
            for file in self._files.listdir(path / name):
                unlink_if_exists(self._files, path / name / file)
            self._files.rmdir(path / name)
        self._files.rmdir(path)

    def _find_deleted_hubs(self) -> list[Path]:
        """Directories of deleted hubs that an earlier process did not remove completely."""
        names = self._files.listdir(self._directory)
        return [self._directory / name for name in names if name.startswith(_DELETED_PREFIX)]
