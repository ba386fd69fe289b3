"""The official interface's classes, where azure-eventhub is installed; it is never required."""

from __future__ import annotations

import importlib
from typing import Any


def base_class(module: str) -> Any:
    """`CheckpointStore` of `azure.eventhub` or `azure.eventhub.aio`; `object` without them."""
    try:
        return importlib.import_module(module).CheckpointStore
    except ImportError:
        return object
