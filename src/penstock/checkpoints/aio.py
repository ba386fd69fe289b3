"""The stores for asynchronous clients (protocol.md 11.1): the blocking ones, in threads.

A lease is renewed every few seconds and a checkpoint waits for a disk: what a hop to a thread
costs does not show, and file and connections are used by one piece of code.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ParamSpec, Self, TypeVar

from penstock.checkpoints.backends import CheckpointBackend, SqliteBackend
from penstock.checkpoints.official import base_class
from penstock.checkpoints.records import (
    GroupNames,
    Record,
    claims_by_group,
    group_names,
    parse_checkpoint,
)
from penstock.checkpoints.service_client import ServiceBackend

__all__ = ["ServiceCheckpointStore", "SqliteCheckpointStore"]

P = ParamSpec("P")
T = TypeVar("T")
_Official: Any = base_class("azure.eventhub.aio")
_THREADS = 4  # its own: the loop's default ones may all be busy with the program's work


class _AsyncStore(_Official):  # type: ignore[misc]  # Any: azure-eventhub need not be there
    """As `penstock.checkpoints.stores` has it."""

    def __init__(self, backend: CheckpointBackend) -> None:
        self._backend = backend
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="penstock-checkpoints")

    async def list_ownership(
        self,
        fully_qualified_namespace: str,
        eventhub_name: str,
        consumer_group: str,
        **options: Any,
    ) -> list[Record]:
        names = GroupNames(fully_qualified_namespace, eventhub_name, consumer_group)
        return names.records_of(await self._call(self._backend.ownerships, names))

    async def claim_ownership(
        self, ownership_list: Iterable[Mapping[str, Any]], **options: Any
    ) -> list[Record]:
        """Only the ones that were won, each with its new etag and time."""
        won: list[Record] = []
        for names, claims in claims_by_group(ownership_list).items():
            won += names.records_of(await self._call(self._backend.claim, names, claims))
        return won

    async def update_checkpoint(self, checkpoint: Mapping[str, Any], **options: Any) -> None:
        """The last one written counts; it is on disk when this returns."""
        await self._call(self._backend.save, group_names(checkpoint), parse_checkpoint(checkpoint))

    async def list_checkpoints(
        self,
        fully_qualified_namespace: str,
        eventhub_name: str,
        consumer_group: str,
        **options: Any,
    ) -> list[Record]:
        names = GroupNames(fully_qualified_namespace, eventhub_name, consumer_group)
        return names.checkpoint_records_of(await self._call(self._backend.checkpoints, names))

    async def close(self) -> None:
        """Give file or connections back; a store that is used again opens them again."""
        await self._call(self._backend.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def _call(self, act: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        """As long as the file's or the socket's own deadlines let it wait."""
        assert not options
        return await asyncio.get_running_loop().run_in_executor(self._threads, act, *args)


class SqliteCheckpointStore(_AsyncStore):
    """In a file that processes of one machine share; see `penstock.checkpoints`."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(SqliteBackend(Path(path)))


class ServiceCheckpointStore(_AsyncStore):
    """Kept by the service, over HTTPS; see `penstock.checkpoints`."""

    def __init__(
        self,
        connection_string: str,
        *,
        https_url: str | None = None,
        ca_file: str | os.PathLike[str] | None = None,
    ) -> None:
        super().__init__(ServiceBackend.of(connection_string, https_url=https_url, ca_file=ca_file))
