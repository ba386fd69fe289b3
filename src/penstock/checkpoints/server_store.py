"""The service's own leases and checkpoints: a file of its own, read from memory.

The file is not the catalog's: processors write hundreds of checkpoints a second, and each write to
the catalog stops the event loop for a flush and checks every open link again. Here a thread writes,
and all writes that arrive during one flush share the next transaction (group commit).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path

from penstock.checkpoints.records import GroupNames
from penstock.checkpoints.sqlite_file import CheckpointFile, CheckpointWrite, CheckpointWriteResult
from penstock.io.threads import StartedThreads
from penstock.model import limits
from penstock.model.checkpoints import Checkpoint, Claim, Ownership
from penstock.model.errors import OperationCancelled, ServerBusy
from penstock.model.names import fold_name

_NAMESPACE = ""  # a hub's id is unique by itself
_WRITES_MAX = 1_000  # in one transaction

_Result = asyncio.Future[CheckpointWriteResult]


class ServerCheckpointStore:
    """Groups are named by the id of their hub and their own name, so a hub that was deleted and
    created again begins without checkpoints. Every method runs on the thread of the event loop;
    only the file is written on another one."""

    def __init__(
        self, path: Path, *, now_ms: Callable[[], int], loop: asyncio.AbstractEventLoop
    ) -> None:
        self._loop = loop
        self._file = CheckpointFile(path, now_ms=now_ms, is_shared=False)
        self._thread = StartedThreads(1, "penstock-checkpoints")
        # The committed records by group, and by type and partition id.
        self._records: dict[GroupNames, dict[tuple[type, str], Ownership | Checkpoint]] = {}
        self._waiting: list[tuple[CheckpointWrite, _Result]] = []
        self._in_flight: list[CheckpointWrite] = []  # in the transaction under way
        self._writer: asyncio.Task[None] | None = None  # runs while writes wait
        self._is_closed = False
        for key, record in self._file.read_all():
            self._put(key, record)

    def ownerships(self, hub_id: str, group: str) -> list[Ownership]:
        """The committed ones, in the order of first claims."""
        records = self._records.get(_group_key(hub_id, group), {}).values()
        return [record for record in records if isinstance(record, Ownership)]

    def checkpoints(self, hub_id: str, group: str) -> list[Checkpoint]:
        """The committed ones."""
        records = self._records.get(_group_key(hub_id, group), {}).values()
        return [record for record in records if isinstance(record, Checkpoint)]

    async def claim(self, hub_id: str, group: str, claims: Sequence[Claim]) -> list[Ownership]:
        """The claims that won, durable on return. Raises ServerBusy, CheckpointStoreUnavailable."""
        result = await self._write(CheckpointWrite(_group_key(hub_id, group), claims=claims))
        return result.ownerships

    async def save(self, hub_id: str, group: str, checkpoints: Sequence[Checkpoint]) -> None:
        """Durable on return. Raises as `claim` does."""
        await self._write(CheckpointWrite(_group_key(hub_id, group), checkpoints=checkpoints))

    def keep_only(self, existing: Collection[tuple[str, str]]) -> None:
        """Forget all groups but these (hub id, name). If the disk fails now, the next start of the
        service does it again."""
        self._forget(self._stored_keys() - {_group_key(*group) for group in existing})

    def forget(self, hub_id: str, group: str | None = None) -> None:
        """Forget a deleted group, or every group of a deleted hub."""
        only = None if group is None else _group_key(hub_id, group)
        keys = (key for key in self._stored_keys() if key.eventhub_name == hub_id)
        self._forget(key for key in keys if only in (None, key))

    def _stored_keys(self) -> set[GroupNames]:
        """Groups with committed records, or with records that are still to be written."""
        pending = [*self._in_flight, *(write for write, _ in self._waiting)]
        return {*self._records, *(write.key for write in pending if not write.forget)}

    def _forget(self, keys: Iterable[GroupNames]) -> None:
        for key in keys:
            self._records.pop(key, None)
            self._enqueue(CheckpointWrite(key, forget=True))

    async def close(self) -> None:
        """Finish the waiting writes; new ones are refused."""
        self._is_closed = True
        if self._writer is not None:
            await self._writer
        self._thread.shutdown()
        self._file.close()

    async def _write(self, write: CheckpointWrite) -> CheckpointWriteResult:
        if len(self._waiting) >= limits.CHECKPOINT_WAITING_MAX:
            raise ServerBusy(
                f"The server is busy: {len(self._waiting)} writes of checkpoints wait for the "
                "disk. Please wait 4 seconds and try again."
            )
        # Shielded: the write goes on when its caller is canceled.
        return await asyncio.shield(self._enqueue(write))

    def _enqueue(self, write: CheckpointWrite) -> _Result:
        if self._is_closed:
            raise OperationCancelled("The service is stopping.")
        result: _Result = self._loop.create_future()
        result.add_done_callback(_retrieve_exception)
        self._waiting.append((write, result))
        if self._writer is None:
            self._writer = self._loop.create_task(self._write_waiting())
        return result

    async def _write_waiting(self) -> None:
        while self._waiting:
            batch = self._waiting[:_WRITES_MAX]
            del self._waiting[:_WRITES_MAX]
            writes = self._in_flight = [write for write, _ in batch]
            try:
                results = await self._loop.run_in_executor(self._thread, self._file.write, writes)
                for (write, future), result in zip(batch, results, strict=True):
                    self._apply(write, result)
                    future.set_result(result)
            except asyncio.CancelledError:
                canceled = OperationCancelled("Writing checkpoints was canceled.")
                _fail_all([*batch, *self._waiting], canceled)
                raise
            except BaseException as error:  # noqa: BLE001 - the callers get it
                _fail_all(batch, error)
        self._in_flight = []
        self._writer = None

    def _apply(self, write: CheckpointWrite, result: CheckpointWriteResult) -> None:
        if write.forget:
            self._records.pop(write.key, None)
        records: list[Ownership | Checkpoint] = [*result.ownerships, *result.checkpoints]
        for record in records:
            self._put(write.key, record)

    def _put(self, key: GroupNames, record: Ownership | Checkpoint) -> None:
        self._records.setdefault(key, {})[type(record), record.partition_id] = record


def _group_key(hub_id: str, group: str) -> GroupNames:
    return GroupNames(_NAMESPACE, hub_id, fold_name(group))


def _fail_all(batch: Iterable[tuple[CheckpointWrite, _Result]], error: BaseException) -> None:
    for _, result in batch:
        if not result.done():
            result.set_exception(error)


def _retrieve_exception(result: _Result) -> None:
    """asyncio logs an exception that was never retrieved; the caller may have left."""
    if not result.cancelled():
        result.exception()
