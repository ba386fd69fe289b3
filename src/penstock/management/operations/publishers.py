"""Publishers: who is revoked, revoke, resume (protocol.md 7.1)."""

from __future__ import annotations

from penstock.management.operations.base import OperationGroup, format_path
from penstock.management.permissions import Action
from penstock.model import names
from penstock.model.entities import RevokedPublisher


class PublisherOperations(OperationGroup):
    def list_revoked(self, namespace: str, hub: str) -> list[RevokedPublisher]:
        self._permit(Action.PUBLISHER_READ, namespace, hub)
        self._hub(namespace, hub)
        return self._catalog.revoked_publishers(namespace, hub)

    def revoke(self, namespace: str, hub: str, name: str) -> RevokedPublisher:
        """It sends nothing more, its open links end. Again is no error."""
        self._permit(Action.PUBLISHER_REVOKE, namespace, hub, name)
        parent = self._hub(namespace, hub)
        known = self._catalog.revoked_publisher(namespace, hub, name)
        if known is not None:
            return known
        revoked = RevokedPublisher(
            namespace=parent.namespace,
            hub=parent.name,
            name=names.publisher_name(name),
            revoked_ms=self._now_ms(),
        )
        self._catalog.put_revoked_publisher(revoked)
        self._record(Action.PUBLISHER_REVOKE, format_path(parent.namespace, parent.name, name))
        return revoked

    def resume(self, namespace: str, hub: str, name: str) -> None:
        """NotFound when it is not revoked."""
        self._permit(Action.PUBLISHER_RESUME, namespace, hub, name)
        parent = self._hub(namespace, hub)
        self._catalog.delete_revoked_publisher(namespace, hub, name)
        self._record(Action.PUBLISHER_RESUME, format_path(parent.namespace, parent.name, name))
