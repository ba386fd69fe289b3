"""Consumer groups: create, change, list, show, delete."""

from __future__ import annotations

import msgspec

from penstock.management.operations.base import OperationGroup, format_path
from penstock.management.permissions import Action
from penstock.model import names
from penstock.model.entities import ConsumerGroup
from penstock.model.errors import AlreadyExists, NotFound


class ConsumerGroupOperations(OperationGroup):
    def list(self, namespace: str, hub: str) -> list[ConsumerGroup]:
        self._permit(Action.GROUP_READ, namespace, hub)
        self._hub(namespace, hub)
        return self._catalog.groups(namespace, hub)

    def show(self, namespace: str, hub: str, name: str) -> ConsumerGroup:
        self._permit(Action.GROUP_READ, namespace, hub, name)
        self._hub(namespace, hub)
        group = self._catalog.group(namespace, hub, name)
        if group is None:
            raise NotFound(f"The consumer group '{names.quote_text(name)}' does not exist.")
        return group

    def create(
        self, namespace: str, hub: str, name: str, *, user_metadata: str | None = None
    ) -> ConsumerGroup:
        """AlreadyExists when there is one, which `$Default` always is."""
        self._permit(Action.GROUP_WRITE, namespace, hub, name)
        if self._catalog.group(namespace, hub, name) is not None:
            raise AlreadyExists(f"The consumer group '{names.quote_text(name)}' exists already.")
        return self.put(namespace, hub, name, user_metadata=user_metadata)

    def put(
        self, namespace: str, hub: str, name: str, *, user_metadata: str | None = None
    ) -> ConsumerGroup:
        """Create or change it. QuotaExceeded beyond 20 beside `$Default`."""
        self._permit(Action.GROUP_WRITE, namespace, hub, name)
        parent = self._hub(namespace, hub)
        old = self._catalog.group(namespace, hub, name)
        now_ms = self._now_ms()
        if old is None:
            wanted = ConsumerGroup(
                namespace=parent.namespace,
                hub=parent.name,
                name=names.group_name(name),
                created_ms=now_ms,
                updated_ms=now_ms,
                user_metadata=user_metadata or "",
            )
        elif user_metadata is None or user_metadata == old.user_metadata:
            return old
        else:
            wanted = msgspec.structs.replace(old, user_metadata=user_metadata, updated_ms=now_ms)
        self._catalog.put_group(wanted)
        self._record(Action.GROUP_WRITE, format_path(parent.namespace, parent.name, wanted.name))
        return self.show(namespace, hub, name)

    def delete(self, namespace: str, hub: str, name: str) -> None:
        """NotFound; NotAllowed for `$Default`."""
        self._permit(Action.GROUP_DELETE, namespace, hub, name)
        group = self.show(namespace, hub, name)
        self._catalog.delete_group(namespace, hub, name)
        self._record(Action.GROUP_DELETE, format_path(group.namespace, group.hub, group.name))
