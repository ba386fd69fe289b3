"""The stores for blocking clients (protocol.md 11.1). Any number of threads may share one."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self

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

_Official: Any = base_class("azure.eventhub")


class _BlockingStore(_Official):  # type: ignore[misc]  # Any: azure-eventhub need not be there
    """The official interface over a backend. Options are taken and not looked at: the official
    interface lets callers pass some that other stores have."""

    def __init__(self, backend: CheckpointBackend) -> None:
        self._backend = backend

    def list_ownership(
        self,
        fully_qualified_namespace: str,
        eventhub_name: str,
        consumer_group: str,
        **options: Any,
    ) -> list[Record]:
        names = GroupNames(fully_qualified_namespace, eventhub_name, consumer_group)
        return names.records_of(self._backend.ownerships(names))

    def claim_ownership(
        self, ownership_list: Iterable[Mapping[str, Any]], **options: Any
    ) -> list[Record]:
        """Only the ones that were won, each with its new etag and time."""
        won: list[Record] = []
        for names, claims in claims_by_group(ownership_list).items():
            won += names.records_of(self._backend.claim(names, claims))
        return won

    def update_checkpoint(self, checkpoint: Mapping[str, Any], **options: Any) -> None:
        """The last one written counts; it is on disk when this returns."""
        self._backend.save(group_names(checkpoint), parse_checkpoint(checkpoint))

    def list_checkpoints(
        self,
        fully_qualified_namespace: str,
        eventhub_name: str,
        consumer_group: str,
        **options: Any,
    ) -> list[Record]:
        names = GroupNames(fully_qualified_namespace, eventhub_name, consumer_group)
        return names.checkpoint_records_of(self._backend.checkpoints(names))

    def close(self) -> None:
        """Give file or connections back; a store that is used again opens them again."""
        self._backend.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class SqliteCheckpointStore(_BlockingStore):
    """In a file that processes of one machine share; made if it is not there. Not on a network
    file system, where SQLite's write-ahead log does not work."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(SqliteBackend(Path(path)))


class ServiceCheckpointStore(_BlockingStore):
    """Kept by the service that the connection string names, over HTTPS; its policy needs the
    Listen right. Without `https_url`: PENSTOCK_HTTPS_URL, else what the data directory's
    runtime.json says, else port 8443 of the host. `ca_file` verifies the service's certificate;
    without one runtime.json's, else the machine's own authorities."""

    def __init__(
        self,
        connection_string: str,
        *,
        https_url: str | None = None,
        ca_file: str | os.PathLike[str] | None = None,
    ) -> None:
        super().__init__(ServiceBackend.of(connection_string, https_url=https_url, ca_file=ca_file))
