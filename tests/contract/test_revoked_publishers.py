"""Revoked publishers in the catalog (`catalog.api.Catalog`), kept by every backend."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from penstock.catalog.api import Catalog
from penstock.catalog.sqlite import SqliteCatalog
from penstock.model import limits
from penstock.model.entities import Hub, Namespace, RevokedPublisher
from penstock.model.errors import (
    ArgumentError,
    ArgumentOutOfRange,
    NotFound,
    PenstockError,
    QuotaExceeded,
)
from penstock.model.names import HubName, NamespaceName, PublisherName

NS = NamespaceName("Contoso")
HUB = HubName("Events")
NAMESPACE = Namespace(name=NS, created_ms=1, updated_ms=2)
EVENTS = Hub(id="a1", namespace=NS, name=HUB, partition_count=4, created_ms=3, updated_ms=4)
DEVICE = RevokedPublisher(namespace=NS, hub=HUB, name=PublisherName("Device-1"), revoked_ms=5)


@pytest.fixture(params=["memory", "sqlite"])
def catalog(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Catalog]:
    made: Catalog
    made = Catalog() if request.param == "memory" else SqliteCatalog(tmp_path / "catalog.db")
    made.put_namespace(NAMESPACE)
    made.put_hub(EVENTS)
    yield made
    made.close()


def changed(**changes: object) -> RevokedPublisher:
    return msgspec.structs.replace(DEVICE, **changes)


def test_nobody_is_revoked_at_first(catalog: Catalog) -> None:
    assert catalog.revoked_publishers(NS, HUB) == []
    assert catalog.revoked_publisher(NS, HUB, "Device-1") is None
    assert catalog.revoked_publishers("nobody", "nothing") == []


def test_revoked_publisher_is_found_in_any_case(catalog: Catalog) -> None:
    catalog.put_revoked_publisher(DEVICE)
    assert catalog.revoked_publisher("contoso", "EVENTS", "DEVICE-1") == DEVICE
    assert catalog.revoked_publishers("contoso", "EVENTS") == [DEVICE]


def test_revoked_publishers_are_listed_by_name(catalog: Catalog) -> None:
    for name in ("zeta", "Alpha", "beta"):
        catalog.put_revoked_publisher(changed(name=name))
    assert [each.name for each in catalog.revoked_publishers(NS, HUB)] == ["Alpha", "beta", "zeta"]


def test_revoking_again_keeps_the_first_spelling(catalog: Catalog) -> None:
    catalog.put_revoked_publisher(DEVICE)
    catalog.put_revoked_publisher(changed(namespace="CONTOSO", hub="events", name="DEVICE-1"))
    catalog.put_revoked_publisher(changed(name="device-1", revoked_ms=9))
    assert catalog.revoked_publishers(NS, HUB) == [changed(revoked_ms=9)]


def test_resumed_publisher_is_revoked_no_more(catalog: Catalog) -> None:
    catalog.put_revoked_publisher(DEVICE)
    catalog.put_revoked_publisher(changed(name="other"))
    catalog.delete_revoked_publisher("contoso", "events", "DEVICE-1")
    assert [each.name for each in catalog.revoked_publishers(NS, HUB)] == ["other"]


def test_hub_takes_its_revoked_publishers_along(catalog: Catalog) -> None:
    catalog.put_hub(msgspec.structs.replace(EVENTS, id="a2", name=HubName("other")))
    catalog.put_revoked_publisher(DEVICE)
    catalog.put_revoked_publisher(changed(hub="other"))
    catalog.delete_hub(NS, HUB)
    assert catalog.revoked_publishers(NS, HUB) == []
    assert catalog.revoked_publishers(NS, "other") == [changed(hub="other")]
    catalog.put_hub(msgspec.structs.replace(EVENTS, id="a3"))
    assert catalog.revoked_publisher(NS, HUB, "Device-1") is None


def test_namespace_takes_its_revoked_publishers_along(catalog: Catalog) -> None:
    catalog.put_revoked_publisher(DEVICE)
    catalog.delete_namespace(NS)
    catalog.put_namespace(NAMESPACE)
    catalog.put_hub(EVENTS)
    assert catalog.revoked_publishers(NS, HUB) == []


REFUSED: list[tuple[str, type[PenstockError], Callable[[Catalog], None]]] = [
    ("name empty", ArgumentError, lambda c: c.put_revoked_publisher(changed(name=""))),
    ("name long", ArgumentError, lambda c: c.put_revoked_publisher(changed(name="p" * 257))),
    ("name with NUL", ArgumentError, lambda c: c.put_revoked_publisher(changed(name="a\0"))),
    ("name no Unicode", ArgumentError, lambda c: c.put_revoked_publisher(changed(name="\ud800"))),
    ("publish URI", ArgumentError, lambda c: c.put_revoked_publisher(changed(name="a/Messages"))),
    ("time", ArgumentOutOfRange, lambda c: c.put_revoked_publisher(changed(revoked_ms=-1))),
    ("no such hub", NotFound, lambda c: c.put_revoked_publisher(changed(hub="nothing"))),
    ("no such namespace", NotFound, lambda c: c.put_revoked_publisher(changed(namespace="none"))),
    ("not revoked", NotFound, lambda c: c.delete_revoked_publisher(NS, HUB, "other")),
    ("hub to resume on", NotFound, lambda c: c.delete_revoked_publisher(NS, "none", "Device-1")),
]


@pytest.mark.parametrize(
    ("error", "act"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED]
)
def test_refused_write_changes_nothing(
    catalog: Catalog, error: type[PenstockError], act: Callable[[Catalog], None]
) -> None:
    catalog.put_revoked_publisher(DEVICE)
    calls: list[int] = []
    catalog.subscribe(lambda _: calls.append(1))
    with pytest.raises(error) as caught:
        act(catalog)
    assert type(caught.value) is error
    assert catalog.revoked_publishers(NS, HUB) == [DEVICE]
    assert calls == []


def test_revoked_publishers_are_limited(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "REVOKED_PUBLISHERS_MAX", 3)
    for number in range(3):
        catalog.put_revoked_publisher(changed(name=f"p{number}"))
    with pytest.raises(QuotaExceeded, match="has 3 revoked publishers: at most 3"):
        catalog.put_revoked_publisher(changed(name="more"))
    catalog.put_revoked_publisher(changed(name="p0", revoked_ms=99))
    assert len(catalog.revoked_publishers(NS, HUB)) == 3


def test_subscriber_hears_of_revoking_and_resuming(catalog: Catalog) -> None:
    seen: list[int] = []
    catalog.subscribe(lambda _: seen.append(len(catalog.revoked_publishers(NS, HUB))))
    catalog.put_revoked_publisher(DEVICE)
    catalog.delete_revoked_publisher(NS, HUB, "device-1")
    assert seen == [1, 0]
