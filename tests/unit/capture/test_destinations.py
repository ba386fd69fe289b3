"""Destinations: which there are, what they say of themselves, and files that appear whole."""

from __future__ import annotations

import pickle
from pathlib import Path

import msgspec
import pytest

from penstock.capture.destinations import (
    Destination,
    DestinationFolder,
    check_destination,
    environment_destination,
    resolve_destination,
)
from penstock.capture.storage import DestinationError, FileStore
from penstock.model.errors import ArgumentError, ConfigurationError, NotFound

SECRET = "c2VjcmV0LWtleQ=="
BLOB = Destination(
    name="Cold-Store",
    url="abfs://archive",
    options={"account_name": "acc", "account_key": SECRET},
)


def local(folder: Path, container: str = "box") -> FileStore:
    destination = Destination(name="here", url=folder.as_uri())
    return FileStore(DestinationFolder(destination=destination, container=container))


def test_the_account_chooses_a_destination_by_name_or_by_its_id() -> None:
    arm = "/subscriptions/1/resourceGroups/g/providers/Microsoft.Storage/storageAccounts/cold-store"
    for account in ("Cold-Store", "cold-store", arm, arm + "/"):
        assert resolve_destination([BLOB], account, "box").destination is BLOB
    with pytest.raises(
        ArgumentError, match=r"'elsewhere' is not configured\. Configured: Cold-Store"
    ):
        resolve_destination([BLOB], "elsewhere", "box")
    for container in ("../x", "a/../b", "/etc"):
        with pytest.raises(ArgumentError):
            resolve_destination([BLOB], "cold-store", container)


def test_a_container_is_added_unless_the_url_names_the_very_same() -> None:
    assert DestinationFolder(destination=BLOB, container="box").url == "abfs://archive/box"
    assert DestinationFolder(destination=BLOB, container="archive").url == "abfs://archive"
    deeper = Destination(name="x", url="abfs://archive/deep")
    assert (
        FileStore(DestinationFolder(destination=deeper, container="archive")).root == "archive/deep"
    )
    bare = Destination(name="x", url="abfs://")
    assert DestinationFolder(destination=bare, container="box").url == "abfs://box"
    assert FileStore(DestinationFolder(destination=bare, container="box")).root == "box"
    with pytest.raises(ArgumentError, match="names no container"):
        FileStore(DestinationFolder(destination=bare, container=""))
    there = Destination(name="x", url="file:///data/x")
    assert DestinationFolder(destination=there, container="box").url == "file:///data/x/box"


@pytest.mark.parametrize(
    ("url", "options", "root", "endpoint"),
    [
        (
            "abfss://lake@acc.dfs.core.windows.net/raw",
            {"sas_token": "x"},
            "lake/raw/box",
            "https://acc.blob.core.windows.net",
        ),
        (
            "abfs://lake@acc.dfs.core.chinacloudapi.cn",
            {"account_key": "x"},
            "lake/box",
            "https://acc.blob.core.chinacloudapi.cn",
        ),
        ("az://c", {"account_name": "acc"}, "c/box", "https://acc.blob.core.windows.net"),
        (
            "abfs://",
            {"account_name": "acc", "account_host": "acc.example.com"},
            "box",
            "https://acc.example.com",
        ),
        (
            "abfs://",
            {"connection_string": "AccountName=acc;AccountKey=x==;EndpointSuffix=example.com"},
            "box",
            "https://acc.blob.example.com",
        ),
        (
            "az://",
            {"connection_string": "UseDevelopmentStorage=true"},
            "box",
            "http://127.0.0.1:10000/devstoreaccount1",
        ),
        ("s3://b/d", {"access_key": "x", "secret_key": "y"}, "b/d/box", "s3:/"),
    ],
)
def test_urls_of_every_kind_lead_to_their_account_and_place(
    url: str, options: dict[str, str], root: str, endpoint: str
) -> None:
    check_destination("x", url, options)
    destination = Destination(name="x", url=url, options=options)
    store = FileStore(resolve_destination([destination], "x", "box"))
    assert store.root == root
    assert store.url("a/b c.avro") == f"{endpoint}/{root}/a/b%20c.avro"


def test_a_storage_account_has_to_be_named() -> None:
    nameless = Destination(name="x", url="abfs://c", options={"sas_token": SECRET})
    with pytest.raises(ArgumentError, match="names no storage account") as refused:
        resolve_destination([nameless], "x", "box")
    assert SECRET not in str(refused.value)


def test_nothing_shows_a_credential() -> None:
    target = DestinationFolder(destination=BLOB, container="box")
    for shown in (repr(BLOB), str(BLOB), repr(target), target.url, f"{BLOB}", repr([BLOB])):
        assert SECRET not in shown
    assert pickle.loads(pickle.dumps(BLOB)) == BLOB  # executors need it
    assert msgspec.json.decode(msgspec.json.encode(BLOB), type=Destination) == BLOB


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("ftp://x", {}),
        ("file://host/x", {}),
        ("file:///", {}),
        ("file:///a/../b", {}),
        ("abfs://u:p@c", {}),
        ("s3://u@c", {}),
        ("file://u@/x", {}),
        ("abfs://c?sig=x", {}),
        ("abfs://c", {"access_key": "x"}),
        ("s3://b", {"account_key": "x"}),
        ("file:///a", {"account_key": "x"}),
        ("abfs://c", {"account_key": "x", "sas_token": "y"}),
    ],
)
def test_urls_and_options_that_cannot_be_used_are_refused(
    url: str, options: dict[str, str]
) -> None:
    with pytest.raises(ConfigurationError) as refused:
        check_destination("name", url, options)
    assert "u:p" not in str(refused.value)


def test_files_are_put_whole_and_replaced_whole(tmp_path: Path) -> None:
    store = local(tmp_path / "root")
    for content in (b"one", b"two"):
        source = tmp_path / "spool.avro"
        source.write_bytes(content)
        store.put(source, "a/b/c.avro")
        assert not source.exists()
    with store.open("a/b/c.avro") as opened:
        assert opened.read() == b"two"
    assert store.files() == [("a/b/c.avro", 3)]
    assert store.url("a/b/c.avro") == f"file://{tmp_path}/root/box/a/b/c.avro"
    with pytest.raises(NotFound):
        store.open("a/nothing")


def test_from_another_file_system_nobody_sees_a_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = local(tmp_path / "root")
    plain = Path.replace

    def across(self: Path, target: Path) -> Path:
        if self.name == "spool.avro":
            raise OSError(18, "Invalid cross-device link")
        return plain(self, target)

    monkeypatch.setattr(Path, "replace", across)
    for content in (b"one", b"two"):
        source = tmp_path / "spool.avro"
        source.write_bytes(content)
        store.put(source, "c.avro")
    assert (tmp_path / "root/box/c.avro").read_bytes() == b"two"
    assert [file.name for file in (tmp_path / "root/box").iterdir()] == ["c.avro"]


def test_a_symbolic_link_does_not_lead_out(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    (root / "box").mkdir(parents=True)
    outside.mkdir()
    (root / "box" / "ns").symlink_to(outside)
    source = tmp_path / "x"
    source.write_bytes(b"x")
    with pytest.raises(ArgumentError, match="leads out"):
        local(root).put(source, "ns/c.avro")
    assert list(outside.iterdir()) == []


def test_storage_that_is_away_is_tried_again_and_then_told_without_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "root").write_bytes(b"a file where a directory should be")
    source = tmp_path / "x"
    source.write_bytes(b"x")
    pauses: list[float] = []
    monkeypatch.setattr("penstock.capture.storage.time.sleep", pauses.append)
    with pytest.raises(DestinationError, match="did not take or give"):
        local(tmp_path / "root").upload(source, "c.avro")
    assert pauses == [0.5, 1.0, 2.0, 4.0]
    assert source.exists()


def test_credentials_of_the_environment_belong_to_a_name() -> None:
    environ = {
        "PENSTOCK_CAPTURE_COLD_STORE_ACCOUNT_KEY": SECRET,
        "PENSTOCK_CAPTURE_X_SAS_TOKEN": "y",
    }
    made = environment_destination("Cold-Store", "abfs://archive", environ)
    assert made.options == {"account_key": SECRET}


def test_directories_are_listed_below_a_prefix(tmp_path: Path) -> None:
    for name in ("box/a/1.avro", "box/b/2.avro", "other/3.avro"):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"x")
    assert [path for path, _ in local(tmp_path).files("a")] == ["a/1.avro"]
    assert local(tmp_path / "nowhere").files() == []
