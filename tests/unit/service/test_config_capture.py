"""`[capture]` of a configuration file."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.model.errors import ConfigurationError
from penstock.service.config.loader import load_settings
from penstock.service.config.settings import CaptureJobConfig, destinations_of

SECRET = "c2VjcmV0LWtleQ=="


def load(tmp_path: Path, text: str, **environ: str) -> CaptureJobConfig:
    file = tmp_path / "penstock.toml"
    file.write_text(text)
    return load_settings(flags={"config": file}, environ=environ).capture


def test_everything_that_can_be_said(tmp_path: Path) -> None:
    (tmp_path / "key").write_text(f"{SECRET}\n")
    found = load(
        tmp_path,
        """
        [capture]
        master = "spark://host:7077"
        [capture.spark]
        "spark.driver.memory" = "1g"
        "spark.ui.enabled" = true
        [capture.notify]
        url_env = "HOOK"
        format = "cloudevents"
        [capture.destinations.near]
        url = "file:///srv/x"
        iso_time = true
        [capture.destinations.cold-store]
        url = "abfs://box"
        account_name = "acc"
        account_key_file = "key"
        [capture.destinations.lake]
        url = "abfs://lake"
        [capture.destinations.s3]
        url = "s3://bucket/dir"
        endpoint_url = "http://127.0.0.1:9000"
        access_key = "me"
        secret_key_env = "S3"
        """,
        HOOK="https://example.com/?code=hidden",
        S3="s3-secret",
        PENSTOCK_CAPTURE_LAKE_SAS_TOKEN="sig",
    )
    assert found.master == "spark://host:7077"
    assert found.spark == {"spark.driver.memory": "1g", "spark.ui.enabled": "true"}
    near, cold, lake, s3 = found.destinations
    assert near.iso_time and near.options == {}
    assert cold.options == {"account_name": "acc", "account_key": SECRET}
    assert lake.options == {"sas_token": "sig"}
    assert s3.options["secret_key"] == "s3-secret"
    assert found.notify is not None and found.notify.format == "cloudevents"
    for secret in (SECRET, "s3-secret", "hidden"):
        assert secret not in repr(found)


def test_without_destinations_there_is_one_of_the_service_s_own(tmp_path: Path) -> None:
    (own,) = destinations_of(load(tmp_path, ""), tmp_path)
    assert (own.name, own.url) == ("local", (tmp_path / "captured").as_uri())
    config = load(tmp_path, '[capture.destinations.a]\nurl = "file:///a"')
    assert [each.name for each in destinations_of(config, tmp_path)] == ["a"]


ONE = "[capture.destinations.a]\nurl = 'abfs://x'\n"


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("[capture]\nmastr = 'x'", "mastr"),
        ("[capture.destinations.a]\n", "url"),
        ("[capture.destinations.a]\nurl = 'ftp://x'", "ftp"),
        (f"{ONE}account_keys = 'k'", "account_keys"),
        ("[capture.destinations.'a b']\nurl = 'file:///x'", "letters"),
        (f"{ONE}account_key = 'k'\naccount_key_env = 'K'", "one of them"),
        (f"{ONE}account_key_env = 'NOT_SET'", "not set"),
        (f"{ONE}[capture.destinations.A]\nurl = 'file:///y'", "twice"),
        ("[capture.notify]\nhub = 'h'\nurl = 'https://x'", "one of the two"),
        ("[capture.notify]\nurl = 'http://example.com/?code=hidden'", "https"),
        ("[capture.spark]\nmemory = '1g'", "spark.NAME"),
    ],
)
def test_what_cannot_be_used_is_one_sentence(tmp_path: Path, text: str, word: str) -> None:
    with pytest.raises(ConfigurationError, match=word) as refused:
        load(tmp_path, text)
    assert "hidden" not in str(refused.value)
