"""Stores for the leases and checkpoints of event processors (protocol.md 11).

`SqliteCheckpointStore(path)` for processes of one machine, `ServiceCheckpointStore(connection
string)` kept by the service over HTTPS. Both have the interface of the official azure-eventhub's
CheckpointStore, for its blocking clients; `penstock.checkpoints.aio` has them for the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.model.errors import CheckpointStoreUnavailable

if TYPE_CHECKING:
    from penstock.checkpoints.stores import ServiceCheckpointStore, SqliteCheckpointStore

__all__ = ["CheckpointStoreUnavailable", "ServiceCheckpointStore", "SqliteCheckpointStore"]


def __getattr__(name: str) -> Any:
    """Loaded when they are asked for: the stores look for azure-eventhub, which takes half a
    second to import, and the service keeps checkpoints without it."""
    if name in __all__:
        from penstock.checkpoints import stores

        return getattr(stores, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
