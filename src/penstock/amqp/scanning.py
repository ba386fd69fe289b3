"""Which `scan_transfers` serves: the compiled twin where it was built, else the pure one."""

from __future__ import annotations

import os

from penstock.amqp.scan import TransferRun

COMPILED = False
if os.environ.get("PENSTOCK_KERNEL") != "pure":
    try:
        from penstock.amqp._scan import scan_transfers
    except ImportError:
        pass
    else:
        COMPILED = True
if not COMPILED:
    from penstock.amqp.scan import scan_transfers

__all__ = ["COMPILED", "TransferRun", "scan_transfers"]
