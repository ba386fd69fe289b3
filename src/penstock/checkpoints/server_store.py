"""The service's own leases and checkpoints: a file of its own, read from memory.

A file apart from the catalog: processors write checkpoints by the hundred a second, and each write
of the catalog stops the event loop for a flush and has every open link judged again. Here whatever
is asked for while the disk is busy goes into one transaction, on a thread (group commit).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from penstock.checkpoints.backends import new_etag
from penstock.checkpoints.sqlite_file import (
    CheckpointFile,
    CheckpointWrite,
    CheckpointWriteResult,
    GroupKey,
)
from penstock.io.threads import StartedThreads
from penstock.model import limits
from penstock.model.checkpoints import Checkpoint, Claim, Ownership
from penstock.model.errors import OperationCancelled, ServerBusy
from penstock.model.names import fold_name

_NAMESPACE = ""  # a hub's id is unique by itself
_WORKS_MAX = 1_000  # of one transaction


class _GroupRecords:
    """What is committed of one consumer group, by partition id."""

    __slots__ = ("checkpoints", "ownerships")

    def __init__(self) -> None:
        self.ownerships: dict[str, Ownership] = {}
        self.checkpoints: dict[str, Checkpoint] = {}

    def put(self, record: Ownership | Checkpoint) -> None:
        if isinstance(record, Ownership):
            self.ownerships[record.partition_id] = record
        else:
            self.checkpoints[record.partition_id] = record


class ServerCheckpointStore:
    """Groups are named by their hub's id and their own name: a hub that was deleted and made again
    begins without checkpoints. Everything runs on the loop's thread but the writing itself."""

    def __init__(
        self, path: Path, *, now_ms: Callable[[], int], loop: asyncio.AbstractEventLoop
    ) -> None:
        self._loop = loop
        self._file = CheckpointFile(path, now_ms=now_ms, new_etag=new_etag, is_shared=False)
        self._thread = StartedThreads(1, "penstock-checkpoints")
        self._groups: dict[GroupKey, _GroupRecords] = {}
        self._waiting: list[tuple[CheckpointWrite, asyncio.Future[CheckpointWriteResult]]] = []
        self._taken: list[CheckpointWrite] = []  # what the disk is busy with
        self._writing: asyncio.Task[None] | None = None
        self._closed = False
        for place, record in self._file.read_all():
            self._groups.setdefault(place, _GroupRecords()).put(record)

    def ownerships(self, hub_id: str, group: str) -> list[Ownership]:
        """What is committed, in the order of first claims."""
        known = self._groups.get(_service_group_key(hub_id, group))
        return [] if known is None else list(known.ownerships.values())

    def checkpoints(self, hub_id: str, group: str) -> list[Checkpoint]:
        known = self._groups.get(_service_group_key(hub_id, group))
        return [] if known is None else list(known.checkpoints.values())

    async def claim(self, hub_id: str, group: str, claims: Sequence[Claim]) -> list[Ownership]:
        """The claims that won, durable on return. Raises ServerBusy, CheckpointStoreUnavailable."""
        written = await self._write(
            CheckpointWrite(_service_group_key(hub_id, group), claims=claims)
        )
        return written.ownerships

    async def save(self, hub_id: str, group: str, checkpoints: Sequence[Checkpoint]) -> None:
        """Durable on return. Raises as `claim` does."""
        await self._write(
            CheckpointWrite(_service_group_key(hub_id, group), checkpoints=checkpoints)
        )

    def keep_only(self, living: Collection[tuple[str, str]]) -> None:
        """Forget groups that are not among the living (hub id, name). Done again at the next
        start, if the disk does not take it now."""
        wanted = {_service_group_key(*group) for group in living}
        self._forget([place for place in self._stored_places() if place not in wanted])

    def forget_hub(self, hub_id: str) -> None:
        """Forget every group of a hub that was deleted."""
        self._forget([place for place in self._stored_places() if place.hub == hub_id])

    def forget_group(self, hub_id: str, group: str) -> None:
        """Forget a group that was deleted."""
        place = _service_group_key(hub_id, group)
        if place in self._stored_places():
            self._forget([place])

    def _stored_places(self) -> set[GroupKey]:
        """Of what is committed, and of what is on its way to the disk."""
        coming = [*self._taken, *(work for work, _ in self._waiting)]
        return {*self._groups, *(work.place for work in coming if not work.forget)}

    def _forget(self, places: Collection[GroupKey]) -> None:
        for place in places:
            self._groups.pop(place, None)
            self._put(CheckpointWrite(place, forget=True))

    async def close(self) -> None:
        """What waits is written; then nothing more is taken."""
        self._closed = True
        if self._writing is not None:
            await self._writing
        self._thread.shutdown()
        self._file.close()

    async def _write(self, work: CheckpointWrite) -> CheckpointWriteResult:
        if len(self._waiting) >= limits.CHECKPOINT_WAITING_MAX:
            raise ServerBusy(
                f"The server is busy: {len(self._waiting)} writes of checkpoints wait for the "
                "disk. Please wait 4 seconds and try again."
            )
        # Shielded: a caller that leaves takes only its own wait away.
        return await asyncio.shield(self._put(work))

    def _put(self, work: CheckpointWrite) -> asyncio.Future[CheckpointWriteResult]:
        if self._closed:
            raise OperationCancelled("The service is stopping.")
        done: asyncio.Future[CheckpointWriteResult] = self._loop.create_future()
        done.add_done_callback(_consume_exception)
        self._waiting.append((work, done))
        if self._writing is None:
            self._writing = self._loop.create_task(self._write_all())
        return done

    async def _write_all(self) -> None:
        while self._waiting:
            taken = self._waiting[:_WORKS_MAX]
            del self._waiting[:_WORKS_MAX]
            works = self._taken = [work for work, _ in taken]
            try:
                written = await self._loop.run_in_executor(self._thread, self._file.write, works)
                for (work, done), each in zip(taken, written, strict=True):
                    self._apply_write(work, each)
                    done.set_result(each)
            except BaseException as error:
                self._fail(taken, error)
                if self._is_canceled():
                    self._fail(self._waiting, error)
                    raise
        self._taken = []
        self._writing = None

    def _is_canceled(self) -> bool:
        task = asyncio.current_task()
        return task is not None and task.cancelling() > 0

    def _fail(
        self,
        taken: Sequence[tuple[CheckpointWrite, asyncio.Future[CheckpointWriteResult]]],
        error: BaseException,
    ) -> None:
        if isinstance(error, asyncio.CancelledError):
            error = OperationCancelled("Writing checkpoints was canceled.")
        for _, done in taken:
            if not done.done():
                done.set_exception(error)

    def _apply_write(self, work: CheckpointWrite, written: CheckpointWriteResult) -> None:
        if work.forget:
            self._groups.pop(work.place, None)
        if written.ownerships or written.checkpoints:
            group = self._groups.setdefault(work.place, _GroupRecords())
            for ownership in written.ownerships:
                group.put(ownership)
            for checkpoint in written.checkpoints:
                group.put(checkpoint)


def _service_group_key(hub_id: str, group: str) -> GroupKey:
    return GroupKey(_NAMESPACE, hub_id, fold_name(group))


def _consume_exception(done: asyncio.Future[CheckpointWriteResult]) -> None:
    """Nobody may wait any more; that its error is not looked at is no fault then."""
    if not done.cancelled():
        done.exception()
