"""What a query gets that does not say otherwise: a trigger and a name; and who it is, for us.

Spark's default trigger asks a source that has nothing without a pause and burns half a core, and a
query without a name does not find its checkpoint again. While `query_defaults` lasts, every
`writeStream` of this process begins with both; what the writer says itself comes later and wins.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from penstock.model.errors import ArgumentError

_CLASSIC = "pyspark.sql.streaming.readwriter"
_CONNECT = "pyspark.sql.connect.streaming.readwriter"
_STARTS = ("start", "toTable")


@contextmanager
def query_defaults(
    name: str,
    trigger: Mapping[str, Any],
    *,
    is_forced: bool,
    started: Callable[[Any], None],
) -> Iterator[None]:
    """`trigger` are the arguments of Spark's `.trigger()`; when forced, a writer's own is ignored.
    `started` hears of every query, in the thread that started it."""
    from pyspark.sql.streaming import readwriter  # noqa: F401  # so that there is one to change

    classes = [
        sys.modules[module].DataStreamWriter
        for module in (_CLASSIC, _CONNECT)
        if module in sys.modules
    ]
    names = _names(name)
    kept = [(each, _change(each, names, trigger, is_forced, started)) for each in classes]
    try:
        yield
    finally:
        for each, originals in kept:
            for attribute, original in originals.items():
                setattr(each, attribute, original)


def _names(name: str) -> Iterator[str]:
    """clean, clean-2, clean-3: the same ones whenever the same file is run."""
    if not name.strip():
        raise ArgumentError("A pipeline needs a name: its queries are named after it.")
    yield name
    number = 1
    while True:
        number += 1
        yield f"{name}-{number}"


def _change(
    writer: Any,
    names: Iterator[str],
    trigger: Mapping[str, Any],
    is_forced: bool,
    started: Callable[[Any], None],
) -> dict[str, Any]:
    originals = {each: getattr(writer, each) for each in ("__init__", "trigger", *_STARTS)}
    begin, set_trigger = originals["__init__"], originals["trigger"]

    def __init__(self: Any, *given: Any, **named: Any) -> None:
        begin(self, *given, **named)
        set_trigger(self, **trigger)
        self.queryName(next(names))

    def keep_trigger(self: Any, **_: Any) -> Any:
        return self

    def telling(original: Any) -> Callable[..., Any]:
        def start(self: Any, *given: Any, **named: Any) -> Any:
            query = original(self, *given, **named)
            started(query)
            return query

        return start

    writer.__init__ = __init__
    if is_forced:
        writer.trigger = keep_trigger
    for each in _STARTS:
        setattr(writer, each, telling(originals[each]))
    return originals
