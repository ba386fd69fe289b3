"""Which readers may read a partition at the same time: epoch (exclusive) and shared readers
(protocol.md 5.6).
"""

from __future__ import annotations

from penstock.broker import error_messages
from penstock.broker.reader import Reader
from penstock.model import limits


def register_reader(registered: list[Reader], new: Reader) -> None:
    """Add the new reader to those of its partition and consumer group, and end the readers that it
    displaces. Raises QuotaExceeded or LinkStolen; nothing has changed then.

    `registered` has up to SHARED_READERS_MAX shared readers, or one epoch reader alone, never both.
    Only attached readers count: an epoch is forgotten when its reader closes.
    """
    current = registered[0] if registered and registered[0].epoch is not None else None
    if new.epoch is None:  # shared readers each get all events
        if current is not None:
            raise error_messages.epoch_reader_exists_error(current.epoch)
        if len(registered) >= limits.SHARED_READERS_MAX:
            raise error_messages.too_many_readers_error([reader.name for reader in registered])
        registered.append(new)
        return
    # Event processors attach with epoch 0: if an equal epoch did not win, none could take over.
    if current is not None and current.epoch is not None and new.epoch < current.epoch:
        raise error_messages.lower_epoch_error(new, current)
    displaced = registered.copy()
    registered[:] = [new]
    for reader in displaced:
        reader.end(error_messages.displaced_error(new, reader))
