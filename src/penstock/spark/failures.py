"""Why a query ended, in a sentence: Spark wraps it in traces of two languages.

    StreamingQueryException: [STREAM_FAILED] ... org.apache.spark.SparkException: ... Traceback ...
    penstock.client.errors.ClientNotFound: The event hub 'x' does not exist.

What counts is the innermost: the last error of a Python trace, or the last cause of a Java one.
"""

from __future__ import annotations

import re
import traceback
from typing import NamedTuple

from penstock.client.errors import plain_text
from penstock.model import errors

TEXT_MAX = 1000
# `module.Name: text` at the beginning of a line, as Python and Java write it.
_OURS = re.compile(r"^(penstock(?:\.\w+)+): (.+)$")
_THEIRS = re.compile(r"^(?:: |Caused by: )?(?:[\w$]+\.)*(\w*(?:Error|Exception|Loss|Exit)): (.+)$")
_PY4J = re.compile(r"An error occurred while calling (o\d+|\w+:[\w.$]+)\.")
_KINDS: tuple[tuple[re.Pattern[str], type[errors.PenstockError]], ...] = (
    (re.compile(r"NotFound$"), errors.NotFound),
    (re.compile(r"(Denied|Unauthorized|AuthFailed)$"), errors.Unauthorized),
    (re.compile(r"(Throttled|ServerBusy)$"), errors.ServerBusy),
    (re.compile(r"TimedOut$"), errors.OperationTimedOut),
    (re.compile(r"(ArgumentError|ArgumentOutOfRange|ConfigurationError)$"), errors.PenstockError),
)


class QueryFailure(NamedTuple):
    """`kind` decides the exit code; final ones are not worth another start."""

    text: str
    kind: type[errors.PenstockError] = errors.PenstockError
    is_final: bool = False

    def error(self) -> errors.PenstockError:
        return self.kind(self.text)


def explain_failure(said: str) -> QueryFailure:
    """Of all that a failed query says."""
    lines = [
        line.rstrip()
        for line in said.splitlines()
        if line.strip() and not _PY4J.match(line)  # names a Java object, not a cause
    ]
    for pattern in (_OURS, _THEIRS):
        for number in range(len(lines) - 1, -1, -1):
            found = pattern.match(lines[number])
            if found is not None:
                text = _join_lines(found[2], lines[number + 1 :])
                is_ours = pattern is _OURS
                shown = plain_text(text) if is_ours else f"{found[1]}: {text}"
                return QueryFailure(_truncate(shown), _kind(found[1]))
    return QueryFailure(_truncate(lines[0] if lines else "The query failed, and does not say why."))


def explain_error(error: BaseException) -> QueryFailure:
    """Of what a user's file raised: our own errors as they are, others with where it was."""
    if type(error).__name__ == "StreamingQueryException":
        return explain_failure(str(error))
    if type(error).__name__ == "Py4JJavaError":  # a Java trace is its text
        return explain_failure(str(error))._replace(is_final=True)
    if isinstance(error, errors.PenstockError):
        return QueryFailure(_truncate(plain_text(str(error))), _public_kind(error), is_final=True)
    if isinstance(error, SystemExit):
        return QueryFailure(f"The file ended with sys.exit({error.code!r}).", is_final=True)
    first = next((line for line in str(error).splitlines() if line.strip()), "")
    places = [
        f"{frame.filename}:{frame.lineno}, in {frame.name}: {frame.line}"
        for frame in traceback.extract_tb(error.__traceback__)
        if not re.search(r"[/\\](pyspark|py4j|penstock|runpy|importlib)\b|<frozen", frame.filename)
    ]
    text = f"{type(error).__name__}: {first}" if first else type(error).__name__
    where = f"\n  {places[-1]}" if places else ""
    return QueryFailure(_truncate(text) + where, is_final=True)


def _public_kind(error: errors.PenstockError) -> type[errors.PenstockError]:
    for kind in (
        errors.ConfigurationError,
        errors.NotFound,
        errors.Unauthorized,
        errors.AuthFailed,
        errors.ServerBusy,
        errors.OperationTimedOut,
    ):
        if isinstance(error, kind):
            return kind
    return errors.PenstockError


def _kind(name: str) -> type[errors.PenstockError]:
    return next((kind for pattern, kind in _KINDS if pattern.search(name)), errors.PenstockError)


def _join_lines(first: str, rest: list[str]) -> str:
    """An error's text may have several lines: up to where a trace goes on."""
    text = first.strip()
    for line in rest:
        if re.match(r"\s|at |Caused by|===|Traceback|\S+:? ?$|\w+(\.\w+)+[:(]", line):
            break
        text += " " + line.strip()
    return text


def _truncate(text: str) -> str:
    return text if len(text) <= TEXT_MAX else text[: TEXT_MAX - 1] + "…"
