"""The catalog in memory: for tests, and for brokers without a disk."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection

from penstock.catalog.api import Catalog, Entity, Record
from penstock.model.entities import AuditEntry

_AUDIT_MAX = 10_000


class MemoryCatalog(Catalog):
    """Without durability."""

    def __init__(self) -> None:
        super().__init__(_NoStorage())


class _NoStorage:
    def __init__(self) -> None:
        self._audit: deque[AuditEntry] = deque(maxlen=_AUDIT_MAX)

    def put(self, records: tuple[Record, ...]) -> None:
        self._audit.extend(record for record in records if isinstance(record, AuditEntry))

    def delete(self, entity: Entity, *audit: AuditEntry) -> None:
        self._audit.extend(audit)

    def audit(self, newest: int) -> list[AuditEntry]:
        return list(reversed(self._audit))[:newest]

    def deleted_hubs(self) -> list[str]:
        return []

    def forget_deleted_hubs(self, ids: Collection[str]) -> None:
        pass

    def close(self) -> None:
        pass
