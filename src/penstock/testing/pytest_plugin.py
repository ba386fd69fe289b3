"""The pytest plugin: the fixture `penstock_broker`. The broker's modules are imported on first use.

pytest is not a dependency of Penstock, so this module does not import it at the top.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.testing.in_process_broker import InProcessBroker

_MARK = "penstock"


def pytest_configure(config: Any) -> None:
    config.addinivalue_line(
        "markers",
        f"{_MARK}(**options): options of penstock.testing.broker for the fixture penstock_broker",
    )
    fixture = importlib.import_module("pytest").fixture
    fixtures = ModuleType("penstock_fixtures")
    vars(fixtures).update(
        penstock_broker=fixture(penstock_broker),
        penstock_broker_options=fixture(penstock_broker_options),
    )
    config.pluginmanager.register(fixtures, "penstock-fixtures")


def penstock_broker_options() -> dict[str, Any]:
    """Override this fixture to set options for the brokers of a module or a directory."""
    return {}


def penstock_broker(
    request: Any, penstock_broker_options: dict[str, Any]
) -> Iterator[InProcessBroker]:
    """A Penstock broker for one test, with the hub `events`; stopped after the test."""
    from penstock.testing.in_process_broker import broker

    options = dict(penstock_broker_options)
    for mark in reversed(list(request.node.iter_markers(_MARK))):  # the nearest one wins
        options.update(mark.kwargs)
    with broker(**options) as running:
        yield running
