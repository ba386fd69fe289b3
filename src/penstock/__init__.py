"""Penstock: Azure Event Hubs that you run yourself.

The public names are the packages below; each is loaded when it is first used.
"""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from types import ModuleType

__version__ = "0.1.0"

_PUBLIC = ("capture", "checkpoints", "client", "spark", "testing")


def __getattr__(name: str) -> ModuleType:
    if name in _PUBLIC and find_spec(f"penstock.{name}") is not None:
        return importlib.import_module(f"penstock.{name}")
    raise AttributeError(f"module 'penstock' has no attribute {name!r}")


def __dir__() -> list[str]:
    return ["__version__", *(name for name in _PUBLIC if find_spec(f"penstock.{name}") is not None)]
