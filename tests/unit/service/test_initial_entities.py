"""The configuration's entities in a catalog that exists."""

from __future__ import annotations

from penstock.catalog.api import Catalog
from penstock.model.entities import Namespace
from penstock.model.names import NamespaceName
from penstock.service.config.settings import NamespaceSettings
from penstock.service.initial_entities import seed_namespace


def test_configured_namespace_loses_the_scope_that_an_old_version_gave_it() -> None:
    catalog = Catalog()
    catalog.put_namespace(
        Namespace(
            name=NamespaceName("penstock"),
            created_ms=1,
            updated_ms=1,
            metadata={"subscription": "s", "resourceGroup": "g", "tags": {"a": "b"}},
        )
    )
    seed_namespace(catalog, NamespaceSettings(name=NamespaceName("penstock")), now_ms=2)
    stored = catalog.namespace("penstock")
    assert stored is not None
    assert stored.metadata == {"tags": {"a": "b"}}
