"""Why a query ended: one sentence out of the traces of two languages, and its exit code."""

from __future__ import annotations

import pytest

from penstock.model import errors
from penstock.spark.errors import TEXT_MAX, explain_error, explain_failure

STREAM_FAILED = """[STREAM_FAILED] Query [id = 5, runId = 6] terminated with exception: Job aborted
due to stage failure: Task 0 in stage 3.0 failed 1 times: Lost task 0.0 in stage 3.0 (TID 5)
(127.0.0.1 executor driver): org.apache.spark.api.python.PythonException: Traceback (most
recent call last):
  File "/venv/lib/pyspark/worker.py", line 2000, in main
    process()
{inner}

\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handle(PythonRunner.scala:581)
\tat java.base/java.lang.Thread.run(Thread.java:840)
Driver stacktrace: SQLSTATE: XXKST"""


@pytest.mark.parametrize(
    ("inner", "kind", "text"),
    [
        (
            "penstock.client.errors.ClientNotFound: The hub 'x' is not there.",
            errors.NotFound,
            "The hub 'x' is not there.",
        ),
        (
            "penstock.client.errors.ClientDenied: The token is expired:\nmake a new one.",
            errors.Unauthorized,
            "The token is expired: make a new one.",
        ),
        ("penstock.client.errors.ClientThrottled: Busy.", errors.ServerBusy, "Busy."),
        ("penstock.client.errors.ClientTimedOut: Late.", errors.OperationTimedOut, "Late."),
        ("penstock.spark.errors.DataLoss: Gone.", errors.PenstockError, "Gone."),
        (
            "ZeroDivisionError: division by zero",
            errors.PenstockError,
            "ZeroDivisionError: division by zero",
        ),
    ],
)
def test_a_python_trace_within_a_java_trace_gives_its_last_error(
    inner: str, kind: type[errors.PenstockError], text: str
) -> None:
    failure = explain_failure(STREAM_FAILED.format(inner=inner))
    assert (failure.text, failure.kind) == (text, kind)
    assert isinstance(failure.error(), kind)


def test_a_java_trace_gives_its_last_cause() -> None:
    said = """org.apache.spark.SparkException: Job aborted.
\tat org.apache.spark.Foo.bar(Foo.scala:1)
Caused by: java.io.IOException: No space left on device
\tat java.base/sun.nio.ch.FileDispatcherImpl.write0(Native Method)"""
    assert explain_failure(said).text == "IOException: No space left on device"


def test_calls_of_java_objects_are_no_cause() -> None:
    said = (
        "An error occurred while calling o82.start.\n"
        ": java.lang.IllegalStateException: Failed to read log file offsets/0. Incomplete file\n"
        "\tat org.apache.spark.sql.execution.streaming.HDFSMetadataLog.get(HDFSMetadataLog.scala:1)"
    )
    text = "IllegalStateException: Failed to read log file offsets/0. Incomplete file"
    assert explain_failure(said).text == text
    assert "o82" not in explain_failure("An error occurred while calling o82.start.").text


def test_a_failure_without_any_trace_is_its_first_line() -> None:
    assert explain_failure("went wrong\nmore").text == "went wrong"
    assert explain_failure("").text
    assert len(explain_failure("x" * 10_000).text) == TEXT_MAX


def test_an_error_of_the_users_file_says_where_it_was() -> None:
    try:
        exec(compile("def pipeline():\n    return 1 / 0\npipeline()", "/home/me/job.py", "exec"))
    except ZeroDivisionError as error:
        failure = explain_error(error)
    assert failure.text.startswith("ZeroDivisionError: division by zero\n  ")
    assert "/home/me/job.py:2, in pipeline" in failure.text
    assert failure.is_final


@pytest.mark.parametrize(
    "error",
    [
        errors.ConfigurationError("no parameter 'x'"),
        errors.NotFound("no hub"),
        errors.OperationTimedOut("late"),
    ],
)
def test_our_own_errors_keep_their_kind(error: errors.PenstockError) -> None:
    failure = explain_error(error)
    assert type(failure.error()) is type(error)
    assert str(failure.error()) == str(error)


def test_a_file_that_exits_says_so() -> None:
    assert "sys.exit(3)" in explain_error(SystemExit(3)).text
