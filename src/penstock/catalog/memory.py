"""A catalog that lives as long as its process: for tests, and for brokers without a disk."""

from __future__ import annotations

from penstock.catalog.index import CatalogIndex, Record


class MemoryCatalog(CatalogIndex):
    """`catalog.api.Catalog` without durability."""

    def __init__(self) -> None:
        super().__init__(_NoStore())


class _NoStore:
    def put(self, records: tuple[Record, ...]) -> None:
        pass

    def delete(self, record: Record) -> None:
        pass

    def close(self) -> None:
        pass
