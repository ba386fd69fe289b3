"""For users' tests: a broker in the test's own process, with faults on demand and a manual clock.

Names are loaded when they are first used: the pytest plugin is in this package, and pytest's start
must not load a broker.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.model.clock import ManualClock
    from penstock.testing.fault_board import InjectedFault
    from penstock.testing.faults import Faults
    from penstock.testing.in_process_broker import InProcessBroker, broker
    from penstock.testing.published_events import PublishedEvent

__all__ = [
    "Faults",
    "InProcessBroker",
    "InjectedFault",
    "ManualClock",
    "PublishedEvent",
    "broker",
]

_HOMES = {
    "ManualClock": "penstock.model.clock",
    "InProcessBroker": "penstock.testing.in_process_broker",
    "broker": "penstock.testing.in_process_broker",
    "InjectedFault": "penstock.testing.fault_board",
    "Faults": "penstock.testing.faults",
    "PublishedEvent": "penstock.testing.published_events",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(home), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
