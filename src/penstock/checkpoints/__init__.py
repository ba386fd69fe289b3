"""Stores for the leases and checkpoints of event processors (protocol.md 11).

`SqliteCheckpointStore(path)` is for the processes of one machine,
`ServiceCheckpointStore(connection_string)` stores in the service over HTTPS. Both have the
interface of azure-eventhub's CheckpointStore, for its blocking clients;
`penstock.checkpoints.aio` has them for the asynchronous ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.model.errors import CheckpointStoreUnavailable

if TYPE_CHECKING:
    from penstock.checkpoints.stores import ServiceCheckpointStore, SqliteCheckpointStore

__all__ = ["CheckpointStoreUnavailable", "ServiceCheckpointStore", "SqliteCheckpointStore"]


def __getattr__(name: str) -> Any:
    """Load the stores at first use: they import azure-eventhub where it is installed, which takes
    half a second, and the service does not need it."""
    if name in __all__:
        from penstock.checkpoints import stores

        return getattr(stores, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
