"""For users' tests: a broker in the test's own process, with fault injection and a manual clock.

Names are imported on first use: the pytest plugin is in this package, and starting pytest must not
import a broker.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.model.clock import ManualClock as ManualClock
    from penstock.testing.faults import Faults as Faults
    from penstock.testing.faults import InjectedFault as InjectedFault
    from penstock.testing.in_process_broker import InProcessBroker as InProcessBroker
    from penstock.testing.in_process_broker import broker as broker
    from penstock.testing.published_events import PublishedEvent as PublishedEvent

_MODULES = {
    "ManualClock": "penstock.model.clock",
    "InProcessBroker": "penstock.testing.in_process_broker",
    "broker": "penstock.testing.in_process_broker",
    "InjectedFault": "penstock.testing.faults",
    "Faults": "penstock.testing.faults",
    "PublishedEvent": "penstock.testing.published_events",
}

__all__ = sorted(_MODULES)


def __getattr__(name: str) -> object:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(module), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
