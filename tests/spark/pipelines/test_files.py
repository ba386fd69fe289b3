"""Pipeline files: what they may look like, and what is said when they do not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock.model.errors import ConfigurationError
from penstock.spark.pipelines.pipeline_file import (
    PipelineFile,
    PipelineHubs,
    PipelineResult,
    parse_arguments,
    pipeline_results,
)


class Writer:
    """Looks like a DataStreamWriter to whoever asks."""

    def queryName(self, name: str) -> Writer:
        return self

    def start(self) -> None:
        return None


class Table:
    """Looks like a DataFrame that is no stream."""

    isStreaming = False
    writeStream = None


def hubs() -> PipelineHubs:
    spark: Any = None
    return PipelineHubs(spark, {"connectionString": "secret"}, reading={}, show=lambda *_: None)


def test_a_file_is_read_without_being_run(tmp_path: Path) -> None:
    file = tmp_path / "job.py"
    file.write_text('"""Counts things.\n\nMore."""\nraise SystemExit(9)\ndef pipeline(): ...\n')
    found = PipelineFile(file)
    assert (found.name, found.is_script) == ("job", False)


def test_a_file_that_is_no_python_is_refused_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "job.py"
    file.write_text("def pipeline(:\n")
    with pytest.raises(ConfigurationError, match=r"job\.py is not a Python file.*line 1"):
        PipelineFile(file)


def test_a_function_gets_what_it_wants_by_name(tmp_path: Path) -> None:
    file = tmp_path / "job.py"
    file.write_text(
        "seen = []\n"
        "def pipeline(hubs, size=5, spark=None, fast=False, rate=1.5, name='a'):\n"
        "    hubs.seen = (spark, size, fast, rate, name)\n"
    )
    given = hubs()
    spark: Any = "the session"
    arguments = {"size": "7", "fast": "yes", "rate": "2", "name": "b=c"}
    assert PipelineFile(file).run(spark, given, arguments) == []
    assert vars(given)["seen"] == ("the session", 7, True, 2.0, "b=c")


def test_a_script_has_session_and_hubs_as_globals(tmp_path: Path) -> None:
    file = tmp_path / "job.py"
    file.write_text("import sys\nhubs.seen = (spark, __name__, sys.argv[1:])\n")
    found, given = PipelineFile(file), hubs()
    spark: Any = "the session"
    assert found.is_script
    assert found.run(spark, given, {}) == []
    assert vars(given)["seen"] == ("the session", "__main__", [])
    with pytest.raises(ConfigurationError, match=r"has no function pipeline.*take size"):
        found.run(spark, given, {"size": "7"})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"sizes": "7"}, "no parameter 'sizes': it has size, fast. Did you mean size?"),
        ({"size": "many"}, "size is int, as its default 5: 'many' is not"),
        ({"fast": "perhaps"}, "fast is bool, as its default False: 'perhaps' is not"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(given: dict[str, str], said: str) -> None:
    def pipeline(spark: object, hubs: object, size: int = 5, fast: bool = False) -> None: ...

    with pytest.raises(ConfigurationError) as refused:
        parse_arguments(pipeline, given, where="job.py")
    assert said in str(refused.value)


def test_a_parameter_without_default_is_refused() -> None:
    def pipeline(spark: object, topic: str) -> None: ...

    with pytest.raises(ConfigurationError, match=r"parameter 'topic' of .* needs a default"):
        parse_arguments(pipeline, {}, where="job.py")


def test_what_a_pipeline_returns_is_taken_in_each_shape() -> None:
    one, two = Writer(), Writer()
    assert pipeline_results(None, where="job.py") == []
    assert pipeline_results(one, where="job.py") == [PipelineResult(None, one)]
    assert pipeline_results([one, two], where="job.py") == [
        PipelineResult(None, one),
        PipelineResult(None, two),
    ]
    assert pipeline_results({"a": one}, where="job.py") == [PipelineResult("a", one)]


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        (5, "returned int"),
        ([Writer(), "x"], "returned str"),
        ({"": Writer()}, "named a query ''"),
        (Table(), "no stream"),
    ],
)
def test_what_cannot_be_run_is_refused(returned: object, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        pipeline_results(returned, where="job.py")


def test_hubs_do_not_show_their_key() -> None:
    assert "secret" not in repr(hubs())


def test_unknown_parameter_is_found_without_running_the_file(tmp_path: Path) -> None:
    file = tmp_path / "job.py"
    file.write_text("raise SystemExit(9)\ndef pipeline(spark, hubs, *, hub='a', limit=1): ...\n")
    pipeline = PipelineFile(file)
    pipeline.check_names(["hub", "limit"])
    with pytest.raises(ConfigurationError, match=r"no parameter 'hbu': it has hub, limit\..*hub\?"):
        pipeline.check_names(["hbu"])
    file.write_text("def other(f): return f\n@other\ndef pipeline(spark): ...\n")
    PipelineFile(file).check_names(["anything"])  # a decorator may take more than it shows
    file.write_text("print(1)\n")
    with pytest.raises(ConfigurationError, match="has no function pipeline"):
        PipelineFile(file).check_names(["hub"])
