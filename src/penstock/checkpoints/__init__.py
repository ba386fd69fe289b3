"""Stores for the leases and checkpoints of event processors (protocol.md 11).

`SqliteCheckpointStore(path)` is for the processes of one machine,
`ServiceCheckpointStore(connection_string)` stores in the service over HTTPS. Both have the
interface of azure-eventhub's CheckpointStore, for its blocking clients;
`penstock.checkpoints.aio` has them for the asynchronous ones.

The stores are imported on first use: they import azure-eventhub where it is installed, which takes
half a second, and the service does not need it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock import lazy_names

if TYPE_CHECKING:
    from penstock.checkpoints.stores import ServiceCheckpointStore as ServiceCheckpointStore
    from penstock.checkpoints.stores import SqliteCheckpointStore as SqliteCheckpointStore
    from penstock.model.errors import CheckpointStoreUnavailable as CheckpointStoreUnavailable

_NAMES = {
    "checkpoints.stores": "ServiceCheckpointStore SqliteCheckpointStore",
    "model.errors": "CheckpointStoreUnavailable",
}
__getattr__, __dir__, __all__ = lazy_names(__name__, _NAMES)
