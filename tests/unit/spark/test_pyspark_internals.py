"""Attributes of PySpark that are not public and that Penstock uses.

pyproject.toml bounds the version of PySpark. Before the bound is raised, these tests must pass with
the new version, and so must tests/spark.
"""

from __future__ import annotations

import inspect
import re
from importlib.metadata import version
from pathlib import Path

from pyspark import SparkContext, daemon
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from penstock.spark.launcher import CONTEXT_ATTRIBUTES, SESSION_ATTRIBUTES

ROOT = Path(__file__).parents[3]


def test_the_installed_version_is_within_the_bound() -> None:
    bounds = re.findall(r'"pyspark(?:\[connect\])?>=4\.2,<4\.(\d+)"', _pyproject())
    assert len(bounds) == 2 and len(set(bounds)) == 1
    major, minor = version("pyspark").split(".")[:2]
    assert (int(major), int(minor)) < (4, int(bounds[0]))


def test_the_launcher_finds_the_attributes_that_refer_to_a_jvm() -> None:
    assert CONTEXT_ATTRIBUTES == ("_gateway", "_jvm", "_active_spark_context")
    assert all(name in vars(SparkContext) for name in CONTEXT_ATTRIBUTES)
    assert SESSION_ATTRIBUTES == ("_instantiatedSession", "_activeSession")
    assert all(name in vars(SparkSession) for name in SESSION_ATTRIBUTES)
    assert "_accumulatorServer" in inspect.getsource(SparkContext)


def test_the_launcher_passes_arguments_to_the_process_of_the_jvm() -> None:
    assert list(inspect.signature(launch_gateway).parameters) == ["conf", "popen_kwargs"]
    assert "gateway.proc = proc" in inspect.getsource(launch_gateway)


def test_a_context_uses_the_gateway_that_is_set() -> None:
    source = inspect.getsource(SparkContext._ensure_initialized)
    assert "if not SparkContext._gateway:" in source


def test_the_pipeline_runner_patches_public_methods_of_writers() -> None:
    for name in ("trigger", "queryName", "start", "toTable"):
        assert callable(getattr(DataStreamWriter, name))


def test_create_data_frame_sets_the_active_session_of_its_thread() -> None:
    assert "setActiveSession" in inspect.getsource(SparkSession.createDataFrame)


def test_the_idle_daemon_replaces_names_that_the_daemon_uses() -> None:
    source = inspect.getsource(daemon)
    assert list(inspect.signature(daemon.worker).parameters) == ["sock", "authenticated"]
    assert "select.poll()" in source and "code = worker(sock" in source


def _pyproject() -> str:
    return (ROOT / "pyproject.toml").read_text()
