"""Selects `scan_transfers`: the compiled implementation if it was built, else the pure one."""

from __future__ import annotations

import os

from penstock.amqp.transfer_run import TransferRun

COMPILED = False
if os.environ.get("PENSTOCK_KERNEL") != "pure":
    try:
        from penstock.amqp._transfer_scanner import scan_transfers
    except ImportError:
        pass
    else:
        COMPILED = True
if not COMPILED:
    from penstock.amqp.transfer_run import scan_transfers

__all__ = ["COMPILED", "TransferRun", "scan_transfers"]
