"""Revoked publishers over HTTPS: list, see, revoke, resume (protocol.md 7.1), as Atom."""

from __future__ import annotations

from datetime import UTC, datetime
from urllib.parse import quote

from penstock.broker.hub import HubRuntime
from penstock.catalog.api import Catalog
from penstock.gateway.http.responses import ATOM_ENTRY, ATOM_FEED, HttpResponse, xml_text
from penstock.gateway.http.routes import HttpOperation, RequestTarget
from penstock.model import names
from penstock.model.entities import RevokedPublisher
from penstock.model.errors import AlreadyExists, NotFound

_ATOM = "http://www.w3.org/2005/Atom"
_SERVICE = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"

METHODS = {
    HttpOperation.REVOKED_PUBLISHERS: ("GET",),
    HttpOperation.REVOKED_PUBLISHER: ("GET", "PUT", "DELETE"),
}


class RevokedPublisherEndpoint:
    """The caller has checked the Manage right on the hub."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def act(self, method: str, target: RequestTarget, hub: HubRuntime, now_ms: int) -> HttpResponse:
        """Raises NotFound, AlreadyExists, ArgumentError, QuotaExceeded."""
        if target.operation is HttpOperation.REVOKED_PUBLISHERS:
            publishers = self._catalog.revoked_publishers(hub.entity.namespace, hub.entity.name)
            feed = _build_feed(target, publishers, now_ms)
            return HttpResponse(200, [ATOM_FEED], feed.encode())
        assert target.publisher is not None
        if method == "PUT":
            revoked = self._revoke(hub, target.publisher, now_ms)
            return HttpResponse(201, [ATOM_ENTRY], _build_entry(target, revoked).encode())
        if method == "DELETE":
            self._catalog.delete_revoked_publisher(
                hub.entity.namespace, hub.entity.name, target.publisher
            )
            return HttpResponse(200)
        revoked = self._find(hub, target)
        return HttpResponse(200, [ATOM_ENTRY], _build_entry(target, revoked).encode())

    def _revoke(self, hub: HubRuntime, publisher: str, now_ms: int) -> RevokedPublisher:
        if hub.is_revoked(publisher):
            raise AlreadyExists(
                f"The publisher '{names.quote_text(publisher)}' is already revoked."
            )
        revoked = RevokedPublisher(
            namespace=hub.entity.namespace,
            hub=hub.entity.name,
            name=names.publisher_name(publisher),
            revoked_ms=now_ms,
        )
        self._catalog.put_revoked_publisher(revoked)
        return revoked

    def _find(self, hub: HubRuntime, target: RequestTarget) -> RevokedPublisher:
        assert target.publisher is not None
        entity = hub.entity
        revoked = self._catalog.revoked_publisher(entity.namespace, entity.name, target.publisher)
        if revoked is None:
            raise NotFound(f"The publisher '{names.quote_text(target.publisher)}' is not revoked.")
        return revoked


def _build_feed(target: RequestTarget, publishers: list[RevokedPublisher], now_ms: int) -> str:
    entries = "".join(_build_entry(target, publisher, namespace="") for publisher in publishers)
    return (
        f'<feed xmlns="{_ATOM}"><title type="text">revokedpublishers</title>'
        f"<id>{_list_uri(target)}</id><updated>{format_time(now_ms)}</updated>"
        f'<link rel="self" href="{_list_uri(target)}"/>{entries}</feed>'
    )


def _build_entry(
    target: RequestTarget, publisher: RevokedPublisher, *, namespace: str = f' xmlns="{_ATOM}"'
) -> str:
    uri = f"{_list_uri(target)}/{quote(publisher.name, safe='')}"
    name, time = xml_text(publisher.name), format_time(publisher.revoked_ms)
    return (
        f'<entry{namespace}><id>{uri}</id><title type="text">{name}</title>'
        f"<published>{time}</published><updated>{time}</updated>"
        f'<link rel="self" href="{uri}"/><content type="application/xml">'
        f'<RevokedPublisherDescription xmlns="{_SERVICE}"><Name>{name}</Name>'
        f"</RevokedPublisherDescription></content></entry>"
    )


def _list_uri(target: RequestTarget) -> str:
    """A path without host: clients may use any of the service's names. Escaped already."""
    return f"{target.uri}/revokedpublishers"


def format_time(now_ms: int) -> str:
    return datetime.fromtimestamp(now_ms / 1000, tz=UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
