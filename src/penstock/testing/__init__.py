"""For the tests of those who use Penstock: clocks that are turned by hand, disks that fail, and a
history that tells whether a broker kept its promises."""

from __future__ import annotations

from penstock.model.clock import ManualClock
from penstock.testing.faults import Fault, FaultyFiles, Gate, JumpingClock
from penstock.testing.history import Anomaly, AnomalyKind, History

__all__ = [
    "Anomaly",
    "AnomalyKind",
    "Fault",
    "FaultyFiles",
    "Gate",
    "History",
    "JumpingClock",
    "ManualClock",
]
