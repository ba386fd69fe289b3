"""A catalog that lives as long as its process: for tests, and for brokers without a disk."""

from __future__ import annotations

from collections import deque

from penstock.catalog.index import CatalogIndex, Entity, Record
from penstock.model.usage import AuditEntry

_AUDIT_MAX = 10_000


class MemoryCatalog(CatalogIndex):
    """`catalog.api.Catalog` without durability."""

    def __init__(self) -> None:
        super().__init__(_NoStorage())


class _NoStorage:
    def __init__(self) -> None:
        self._audit: deque[AuditEntry] = deque(maxlen=_AUDIT_MAX)

    def put(self, records: tuple[Record, ...]) -> None:
        self._audit.extend(record for record in records if isinstance(record, AuditEntry))

    def delete(self, record: Entity, *audit: AuditEntry) -> None:
        self._audit.extend(audit)

    def audit(self, newest: int) -> list[AuditEntry]:
        return list(reversed(self._audit))[:newest]

    def close(self) -> None:
        pass
