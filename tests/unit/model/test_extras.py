"""The error for a package of an extra that is not installed."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from penstock.capture.destinations import Destination, resolve_destination
from penstock.capture.storage import FileStore
from penstock.cli.exit_codes import ExitCode, exit_code
from penstock.model import extras

ROOT = Path(__file__).resolve().parents[3]


def test_nothing_is_missing_where_the_packages_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(extras._PACKAGES, "spark", ("no_such_package",))
    with pytest.raises(extras.MissingPackage):
        extras.require_extra("spark")
    monkeypatch.setitem(extras._PACKAGES, "spark", ("json",))
    extras.require_extra("spark")


def test_the_error_names_the_packages_and_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(extras._PACKAGES, "capture", ("json", "no_such_one", "no_such_two"))
    with pytest.raises(extras.MissingPackage) as caught:
        extras.require_extra("capture")
    assert str(caught.value) == (
        "Not installed: no_such_one, no_such_two. Run: pip install 'penstock-eventhubs[capture]'"
    )
    assert isinstance(caught.value, ImportError)  # for `except ImportError` of a caller
    assert exit_code(caught.value) == ExitCode.USAGE


@pytest.mark.parametrize(
    ("url", "extra"), [("s3://captured", "s3"), ("abfs://captured@account", "capture")]
)
def test_a_destination_names_the_extra_of_its_storage(
    url: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(extras._PACKAGES, extra, ("no_such_package",))
    folder = resolve_destination([Destination(name="lake", url=url)], "lake", "directory")
    with pytest.raises(extras.MissingPackage, match=rf"'penstock-eventhubs\[{extra}\]'"):
        FileStore(folder)


def test_every_extra_is_one_of_the_distribution() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(extras._PACKAGES) <= set(project["optional-dependencies"])
