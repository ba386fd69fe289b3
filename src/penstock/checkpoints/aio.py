"""The stores for asynchronous clients (protocol.md 11.1): the blocking ones, called in threads.

A lease is renewed every few seconds and a checkpoint waits for a disk, so the cost of a thread does
not matter.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self, TypeVar

from penstock.checkpoints import stores
from penstock.checkpoints.records import Record

__all__ = ["ServiceCheckpointStore", "SqliteCheckpointStore"]

T = TypeVar("T")
_Official: Any = stores.official_base_class("azure.eventhub.aio")
_THREADS = 4  # the store's own: the threads of the loop may all be busy with the program's work


class _AsyncStore(_Official):  # type: ignore[misc]  # Any: azure-eventhub need not be there
    """The methods do what those of the blocking store do."""

    def __init__(self, store: stores.BlockingStore) -> None:
        self._store = store
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="penstock-checkpoints")

    async def list_ownership(
        self,
        fully_qualified_namespace: str,
        eventhub_name: str,
        consumer_group: str,
        **options: Any,
    ) -> list[Record]:
        names = fully_qualified_namespace, eventhub_name, consumer_group
        return await self._call(self._store.list_ownership, *names)

    async def claim_ownership(
        self, ownership_list: Iterable[Mapping[str, Any]], **options: Any
    ) -> list[Record]:
        return await self._call(self._store.claim_ownership, ownership_list)

    async def update_checkpoint(self, checkpoint: Mapping[str, Any], **options: Any) -> None:
        await self._call(self._store.update_checkpoint, checkpoint)

    async def list_checkpoints(
        self,
        fully_qualified_namespace: str,
        eventhub_name: str,
        consumer_group: str,
        **options: Any,
    ) -> list[Record]:
        names = fully_qualified_namespace, eventhub_name, consumer_group
        return await self._call(self._store.list_checkpoints, *names)

    async def close(self) -> None:
        await self._call(self._store.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def _call(self, function: Callable[..., T], *arguments: object) -> T:
        """The deadlines of the file or the socket bound the wait."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, function, *arguments)


class SqliteCheckpointStore(_AsyncStore):
    """In a file that processes of one machine share; see `penstock.checkpoints`."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(stores.SqliteCheckpointStore(path))


class ServiceCheckpointStore(_AsyncStore):
    """In the service, over HTTPS; see `penstock.checkpoints`."""

    def __init__(
        self,
        connection_string: str,
        *,
        https_url: str | None = None,
        ca_file: str | os.PathLike[str] | None = None,
    ) -> None:
        super().__init__(
            stores.ServiceCheckpointStore(connection_string, https_url=https_url, ca_file=ca_file)
        )
