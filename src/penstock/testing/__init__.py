"""For users' tests: a broker in the test's own process, with fault injection and a manual clock.

Names are imported on first use: the pytest plugin is in this package, and starting pytest must not
import a broker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock import lazy_names

if TYPE_CHECKING:
    from penstock.model.clock import ManualClock as ManualClock
    from penstock.testing.faults import Faults as Faults
    from penstock.testing.faults import InjectedFault as InjectedFault
    from penstock.testing.in_process_broker import InProcessBroker as InProcessBroker
    from penstock.testing.in_process_broker import broker as broker
    from penstock.testing.published_events import PublishedEvent as PublishedEvent

_NAMES = {
    "model.clock": "ManualClock",
    "testing.faults": "Faults InjectedFault",
    "testing.in_process_broker": "InProcessBroker broker",
    "testing.published_events": "PublishedEvent",
}
__getattr__, __dir__, __all__ = lazy_names(__name__, _NAMES)
