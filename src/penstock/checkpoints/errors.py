"""What a store raises beside the errors of `penstock.model.errors`."""

from __future__ import annotations

from penstock.model.errors import PenstockError


class CheckpointStoreUnavailable(PenstockError):
    """The file or the service cannot be reached now. Event processors try again by themselves."""

    condition = "amqp:internal-error"
    http_status = 503
    retriable = True
