"""The stores for asynchronous clients (protocol.md 11.1): the blocking ones, called in threads.

A lease is renewed every few seconds and a checkpoint waits for a disk, so the cost of a thread does
not matter.
"""

from __future__ import annotations

import asyncio
import functools
import os
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from penstock.checkpoints import stores

__all__ = ["ServiceCheckpointStore", "SqliteCheckpointStore"]

P = ParamSpec("P")
T = TypeVar("T")
_Official: Any = stores.official_base_class("azure.eventhub.aio")
_THREADS = 4  # the store's own: the threads of the loop may all be busy with the program's work


def _in_thread(
    method: Callable[Concatenate[stores.BlockingStore, P], T],
) -> Callable[Concatenate[_AsyncStore, P], Coroutine[Any, Any, T]]:
    """The method of the blocking store, called in a thread. The deadlines of the file or the socket
    bound the wait."""

    @functools.wraps(method)
    async def call(self: _AsyncStore, /, *args: P.args, **options: P.kwargs) -> T:
        work = functools.partial(method, self.store, *args, **options)
        return await asyncio.get_running_loop().run_in_executor(self.threads, work)

    return call


class _AsyncStore(_Official):  # type: ignore[misc]  # Any: azure-eventhub need not be there
    """The methods do what those of the blocking store do."""

    def __init__(self, store: stores.BlockingStore) -> None:
        self.store = store
        self.threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="penstock-checkpoints")

    list_ownership = _in_thread(stores.BlockingStore.list_ownership)
    claim_ownership = _in_thread(stores.BlockingStore.claim_ownership)
    update_checkpoint = _in_thread(stores.BlockingStore.update_checkpoint)
    list_checkpoints = _in_thread(stores.BlockingStore.list_checkpoints)
    close = _in_thread(stores.BlockingStore.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()


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
