"""Garbage collection of a long-lived service: what exists after the start is not looked at again.

Python's collector stops the event loop. A full collection visits every container object that is not
frozen: without this the modules, the catalog and the partitions of every hub, which live as long as
the process, made it several times longer (docs/benchmarks.md, stalls).
"""

from __future__ import annotations

import gc

# Allocations before a young collection, and young collections before an older one. The default 700
# starts a collection for every few frames of traffic.
_THRESHOLDS = (10_000, 20, 20)


def freeze_after_start() -> None:
    """Call once, when every listener is open. Objects that exist now are still freed by reference
    counting; only cycles among them are not found any more."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
