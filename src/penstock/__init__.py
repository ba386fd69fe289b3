"""Penstock: Azure Event Hubs that you run yourself.

The public names are the packages below; each is loaded when it is first used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module

__version__ = "0.2.0"

_PACKAGES = ("capture", "checkpoints", "client", "spark", "testing")


def __getattr__(name: str) -> object:
    if name in _PACKAGES:
        return import_module(f"penstock.{name}")
    raise AttributeError(f"module 'penstock' has no attribute {name!r}")


def __dir__() -> list[str]:
    return ["__version__", *_PACKAGES]


def lazy_names(
    package: str, names: Mapping[str, str]
) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` of a package whose public names are imported when they
    are first used. `names` has the names of each module below `penstock`, separated by blanks."""
    modules = {name: module for module, listed in names.items() for name in listed.split()}

    def get_name(name: str) -> object:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"penstock.{modules[name]}"), name)

    return get_name, lambda: sorted(modules), sorted(modules)
