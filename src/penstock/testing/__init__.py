"""For the tests of those who use Penstock: a broker of their own with faults on demand, clocks that
are turned by hand, disks that fail, and a history that tells whether a broker kept its promises.

Names are loaded when they are first used: the pytest plugin lives here, and pytest's start must not
load a broker.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.model.clock import ManualClock
    from penstock.testing.faults import Fault, FaultyFiles, Gate, JumpingClock
    from penstock.testing.history import Anomaly, AnomalyKind, History
    from penstock.testing.in_process import InProcessBroker, broker
    from penstock.testing.injected import InjectedFault
    from penstock.testing.on_demand import Faults
    from penstock.testing.published import PublishedEvent

__all__ = [
    "Anomaly",
    "AnomalyKind",
    "Fault",
    "Faults",
    "FaultyFiles",
    "Gate",
    "History",
    "InProcessBroker",
    "InjectedFault",
    "JumpingClock",
    "ManualClock",
    "PublishedEvent",
    "broker",
]

_HOMES = {
    "ManualClock": "penstock.model.clock",
    "Fault": "penstock.testing.faults",
    "FaultyFiles": "penstock.testing.faults",
    "Gate": "penstock.testing.faults",
    "JumpingClock": "penstock.testing.faults",
    "Anomaly": "penstock.testing.history",
    "AnomalyKind": "penstock.testing.history",
    "History": "penstock.testing.history",
    "InProcessBroker": "penstock.testing.in_process",
    "broker": "penstock.testing.in_process",
    "InjectedFault": "penstock.testing.injected",
    "Faults": "penstock.testing.on_demand",
    "PublishedEvent": "penstock.testing.published",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(home), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
