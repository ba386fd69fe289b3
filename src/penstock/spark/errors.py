"""Errors of queries, and why a query failed, in one sentence.

Spark carries only the text of a Python exception, and wraps it in traces of two languages:

    StreamingQueryException: [STREAM_FAILED] ... org.apache.spark.SparkException: ... Traceback ...
    penstock.client.errors.ClientNotFound: The event hub 'x' does not exist.

The cause is the innermost error: the last one of a Python trace, or the last cause of a Java trace.
"""

from __future__ import annotations

import logging
import os
import pkgutil
import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from penstock.client.errors import ClientError, plain_text
from penstock.model import errors

_log = logging.getLogger("penstock.spark")
TEXT_MAX = 1000
# `module.Name: text` at the beginning of a line, as Python and Java write it.
_OURS = re.compile(r"^(penstock(?:\.\w+)+): (.+)$")
_OTHERS = re.compile(r"^(?:: |Caused by: )?(?:[\w$]+\.)*(\w*(?:Error|Exception|Loss|Exit)): (.+)$")
_PY4J = re.compile(r"An error occurred while calling (o\d+|\w+:[\w.$]+)\.")
# Kinds with an exit code of their own.
_KINDS = (
    errors.ConfigurationError,
    errors.NotFound,
    errors.Unauthorized,
    errors.AuthFailed,
    errors.ServerBusy,
    errors.OperationTimedOut,
)


@contextmanager
def plain_errors() -> Iterator[None]:
    """Raise the client's errors again as one plain sentence, without protocol details. With debug
    logging (of this logger, or PENSTOCK_LOG_LEVEL=debug in the environment of Spark's Python
    workers) they keep the protocol's text."""
    try:
        yield
    except ClientError as error:
        text = plain_text(str(error))
        is_debug = os.environ.get("PENSTOCK_LOG_LEVEL", "").lower() == "debug"
        if text == str(error) or is_debug or _log.isEnabledFor(logging.DEBUG):
            raise
        raise type(error)(text, error.error) from None


class DataLoss(errors.PenstockError):
    """Events that the query should have read are no longer in the hub (`failOnDataLoss`)."""

    condition = "com.microsoft:argument-out-of-range"
    http_status = 410


def events_gone_error(
    hub: str, partition_id: str, first: int, end: int, begin: int | None
) -> DataLoss:
    """Events `first` to `end - 1` were removed before the query read them. `begin` is the oldest
    event that is left; None if there is none."""
    now = "it holds no events now" if begin is None else f"it begins with event {begin} now"
    return DataLoss(
        f"Events {first} to {end - 1} of partition {partition_id} of hub {hub!r} are gone: {now} "
        "(retention was faster than this query, or the hub was created again). Set "
        "failOnDataLoss=false to continue without them."
    )


def position_beyond_end_error(hub: str, partition_id: str, number: int, end: int) -> DataLoss:
    return DataLoss(
        f"Event {number} of partition {partition_id} of hub {hub!r} does not exist: the next one "
        f"will have the number {end}. The position is wrong, or the hub was deleted and created "
        "again since it was stored. Set failOnDataLoss=false to continue with the events that "
        "exist."
    )


def hub_recreated_error(hub: str) -> DataLoss:
    return DataLoss(
        f"The hub {hub!r} was deleted and created again since the query read it: its events begin "
        "with 0 again, and those that the query had not read are lost. Start with a new "
        "checkpointLocation, or set failOnDataLoss=false to read the new hub from its beginning."
    )


class QueryFailure(NamedTuple):
    """Why a query failed. `kind` decides the exit code; a restart cannot cure a final failure."""

    text: str
    kind: type[errors.PenstockError] = errors.PenstockError
    is_final: bool = False

    def error(self) -> errors.PenstockError:
        return self.kind(self.text)


def explain_failure(trace: str) -> QueryFailure:
    """Find the cause in the text of a failed query."""
    lines = [
        line.rstrip()
        for line in trace.splitlines()
        if line.strip() and not _PY4J.match(line)  # names a Java object, not a cause
    ]
    for pattern in (_OURS, _OTHERS):
        for number in range(len(lines) - 1, -1, -1):
            match = pattern.match(lines[number])
            if match is not None:
                text = _join_lines(match[2], lines[number + 1 :])
                if pattern is _OURS:
                    return QueryFailure(_truncate(plain_text(text)), _kind_by_name(match[1]))
                return QueryFailure(_truncate(f"{match[1]}: {text}"))
    return QueryFailure(_truncate(lines[0] if lines else "The query failed without a message."))


def explain_error(error: BaseException) -> QueryFailure:
    """Explain what a user's file raised: our own errors as they are, others with file and line."""
    if type(error).__name__ == "StreamingQueryException":
        return explain_failure(str(error))
    if type(error).__name__ == "Py4JJavaError":  # its text is a Java trace
        return explain_failure(str(error))._replace(is_final=True)
    if isinstance(error, errors.PenstockError):
        return QueryFailure(_truncate(plain_text(str(error))), _kind(type(error)), is_final=True)
    if isinstance(error, SystemExit):
        return QueryFailure(f"The file ended with sys.exit({error.code!r}).", is_final=True)
    first = next((line for line in str(error).splitlines() if line.strip()), "")
    frames = [
        f"{frame.filename}:{frame.lineno}, in {frame.name}: {frame.line}"
        for frame in traceback.extract_tb(error.__traceback__)
        if not re.search(r"[/\\](pyspark|py4j|penstock|runpy|importlib)\b|<frozen", frame.filename)
    ]
    text = f"{type(error).__name__}: {first}" if first else type(error).__name__
    where = f"\n  {frames[-1]}" if frames else ""
    return QueryFailure(_truncate(text) + where, is_final=True)


def _kind(error: type) -> type[errors.PenstockError]:
    return next((kind for kind in _KINDS if issubclass(error, kind)), errors.PenstockError)


def _kind_by_name(name: str) -> type[errors.PenstockError]:
    try:
        return _kind(pkgutil.resolve_name(name))
    except (ImportError, AttributeError, TypeError):
        return errors.PenstockError


def _join_lines(first: str, following: list[str]) -> str:
    """An error's text may have several lines: take those before the trace continues."""
    text = first.strip()
    for line in following:
        if re.match(r"\s|at |Caused by|===|Traceback|\S+:? ?$|\w+(\.\w+)+[:(]", line):
            break
        text += " " + line.strip()
    return text


def _truncate(text: str) -> str:
    return text if len(text) <= TEXT_MAX else text[: TEXT_MAX - 1] + "…"
