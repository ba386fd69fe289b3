"""The stores for blocking clients (protocol.md 11.1). Any number of threads may share one."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self

from penstock.checkpoints.records import (
    GroupNames,
    Record,
    claims_by_group,
    group_names,
    parse_checkpoint,
)
from penstock.checkpoints.service_client import ServiceBackend, locate_service
from penstock.checkpoints.sqlite_file import CheckpointFile
from penstock.model.clock import SystemClock


def official_base_class(module: str) -> Any:
    """`CheckpointStore` of `azure.eventhub` or `azure.eventhub.aio`; `object` where that is not
    installed."""
    try:
        return importlib.import_module(module).CheckpointStore
    except ImportError:
        return object


_Official: Any = official_base_class("azure.eventhub")


class BlockingStore(_Official):  # type: ignore[misc]  # Any: azure-eventhub need not be there
    """The official interface over a backend. Options are accepted and ignored: the interface lets
    callers pass options of other stores. `self` is positional-only, for the wrappers of `aio`."""

    def __init__(self, backend: CheckpointFile | ServiceBackend) -> None:
        self._backend = backend

    def list_ownership(
        self,
        /,
        fully_qualified_namespace: str,
        eventhub_name: str,
        consumer_group: str,
        **options: Any,
    ) -> list[Record]:
        names = GroupNames(fully_qualified_namespace, eventhub_name, consumer_group)
        return names.records_of(self._backend.ownerships(names))

    def claim_ownership(
        self, /, ownership_list: Iterable[Mapping[str, Any]], **options: Any
    ) -> list[Record]:
        """The claims that won, each with its new etag and time."""
        won: list[Record] = []
        for names, claims in claims_by_group(ownership_list).items():
            won += names.records_of(self._backend.claim(names, claims))
        return won

    def update_checkpoint(self, /, checkpoint: Mapping[str, Any], **options: Any) -> None:
        """The last write wins; it is on disk on return."""
        self._backend.save(group_names(checkpoint), parse_checkpoint(checkpoint))

    def list_checkpoints(
        self,
        /,
        fully_qualified_namespace: str,
        eventhub_name: str,
        consumer_group: str,
        **options: Any,
    ) -> list[Record]:
        names = GroupNames(fully_qualified_namespace, eventhub_name, consumer_group)
        return names.checkpoint_records_of(self._backend.checkpoints(names))

    def close(self, /) -> None:
        """Release the file or the connections; the next call opens them again."""
        self._backend.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class SqliteCheckpointStore(BlockingStore):
    """In a file that processes of one machine share; it is created where it is missing. Not for
    network file systems, where SQLite's write-ahead log does not work."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        # Every process that can open the file shares the clock of the machine.
        super().__init__(CheckpointFile(Path(path), now_ms=SystemClock().now_ms))


class ServiceCheckpointStore(BlockingStore):
    """In the service that the connection string names, over HTTPS; its policy needs the Listen
    right. Without `https_url`: PENSTOCK_HTTPS_URL, else the address in the data directory's
    runtime.json, else port 8443 of the host. `ca_file` verifies the service's certificate; without
    one that of runtime.json does, else the machine's own authorities."""

    def __init__(
        self,
        connection_string: str,
        *,
        https_url: str | None = None,
        ca_file: str | os.PathLike[str] | None = None,
    ) -> None:
        service = locate_service(connection_string, https_url=https_url, ca_file=ca_file)
        super().__init__(ServiceBackend(service))
