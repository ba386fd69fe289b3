"""Open sender links of one hub, and publishers that were revoked (protocol.md 7.1)."""

from __future__ import annotations

from collections.abc import Callable

from penstock.broker import error_messages
from penstock.broker.reader import OnEnd
from penstock.catalog.api import Catalog
from penstock.model.entities import Hub
from penstock.model.errors import PenstockError


class SenderLink:
    """Registration of a sender that is not idempotent; `on_end` gets the error when the hub ends
    the link."""

    __slots__ = ("_on_close", "_on_end", "publisher")

    def __init__(
        self, on_end: OnEnd, on_close: Callable[[SenderLink], None], publisher: str | None
    ) -> None:
        self.publisher = publisher
        self._on_end = on_end
        self._on_close = on_close

    def close(self) -> None:
        """Remove the registration, so that the hub no longer refers to the link. Idempotent."""
        self._on_end = _ignore_end
        self._on_close(self)

    def end(self, error: PenstockError) -> None:
        """Close the registration, then notify the owner of the link."""
        on_end = self._on_end
        self.close()
        on_end(error)


class SenderRegistry:
    """The open sender links of one hub. `on_close` runs for each link that closes.

    Methods take the hub as the catalog has it now: the registry does not follow its changes.
    """

    __slots__ = ("_catalog", "_links", "_on_close")

    def __init__(self, catalog: Catalog, on_close: Callable[[SenderLink], None]) -> None:
        self._catalog = catalog
        self._on_close = on_close
        self._links: set[SenderLink] = set()

    def open(self, on_end: OnEnd, publisher: str | None) -> SenderLink:
        link = SenderLink(on_end, self._remove, publisher)
        self._links.add(link)
        return link

    def end_all(self, build_error: Callable[[], PenstockError]) -> None:
        for link in list(self._links):
            link.end(build_error())

    def end_revoked(self, hub: Hub) -> None:
        """End the links of publishers that are revoked."""
        for link in list(self._links):
            publisher = link.publisher
            if publisher is not None and self.is_revoked(hub, publisher):
                link.end(error_messages.publisher_revoked_error(hub, publisher))

    def is_revoked(self, hub: Hub, publisher: str) -> bool:
        """The catalog compares names without case, so another spelling is revoked as well."""
        return self._catalog.revoked_publisher(hub.namespace, hub.name, publisher) is not None

    def check_publisher(self, hub: Hub, publisher: str) -> None:
        """Raises PublisherRevoked."""
        if self.is_revoked(hub, publisher):
            raise error_messages.publisher_revoked_error(hub, publisher)

    def _remove(self, link: SenderLink) -> None:
        self._links.discard(link)
        self._on_close(link)


def _ignore_end(_: object) -> None:
    """Stands for `on_end` of a closed link."""
