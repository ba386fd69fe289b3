"""The catalog's namespaces as verification of tokens sees them."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.auth import Authority
from penstock.catalog.api import Catalog
from penstock.model.entities import AuthorizationRule, Namespace
from penstock.model.names import HubName


class CatalogAuthorities:
    """Built anew only after the catalog changed. Every namespace answers to `extra_hosts` as well
    as to its own: loopback, and the machine's names (design.md 7)."""

    def __init__(self, catalog: Catalog, *, extra_hosts: Sequence[str]) -> None:
        self._catalog = catalog
        self._extra = tuple(extra_hosts)
        self._known: list[Authority] | None = None
        catalog.subscribe(self._changed)

    def __call__(self) -> Sequence[Authority]:
        if self._known is None:
            self._known = [self._authority(n) for n in self._catalog.namespaces()]
        return self._known

    def _changed(self) -> None:
        self._known = None

    def _authority(self, namespace: Namespace) -> Authority:
        name, catalog = namespace.name, self._catalog

        def rule(hub: str | None, rule_name: str) -> AuthorizationRule | None:
            return catalog.rule(name, hub, rule_name)

        def hub(hub_name: str) -> HubName | None:
            found = catalog.hub(name, hub_name)
            return None if found is None else found.name

        return Authority(
            namespace=name,
            hosts=frozenset(host.casefold() for host in (*namespace.hosts, *self._extra)),
            rule=rule,
            hub=hub,
            hubs=lambda: [found.name for found in catalog.hubs(name)],
        )
