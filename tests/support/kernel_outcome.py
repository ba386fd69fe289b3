"""Results of the pure and the compiled kernels in a form that can be compared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.kernels import KernelError, RefusedEvent


def outcome(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """What a kernel returns or raises, in a form that can be compared."""
    try:
        result = function(*arguments, **options)
    except KernelError as error:
        return type(error), str(error)
    if isinstance(result, list):
        return [
            (part.count, type(part.error), str(part.error))
            if isinstance(part, RefusedEvent)
            else part
            for part in result
        ]
    return result
