"""Namespaces of the catalog as authorities for the verification of tokens."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.auth.sas import Authority
from penstock.catalog.api import Catalog, CatalogChange
from penstock.model.entities import AuthorizationRule, Namespace
from penstock.model.names import HubName
from penstock.service.certificates import machine_names
from penstock.service.config.settings import Settings, is_loopback


def shared_hosts(settings: Settings) -> tuple[str, ...]:
    """Host names of every namespace, beside loopback names."""
    own = () if settings.is_loopback else (settings.host, *machine_names())
    return (*own, *settings.public_hosts)


class CatalogAuthorities:
    """The authorities, built again after a namespace has changed.

    A single namespace has every host name. With several, each has its own hosts, and all of them
    share `shared_hosts`, `localhost` and loopback addresses; there the rule and key of the token
    decide which namespace it is for (protocol.md 2.5).
    """

    def __init__(self, catalog: Catalog, *, shared_hosts: Sequence[str] = ()) -> None:
        self._catalog = catalog
        self._shared = frozenset(host.casefold() for host in shared_hosts)
        self._authorities: list[Authority] | None = None
        catalog.subscribe(self._invalidate)

    def __call__(self) -> Sequence[Authority]:
        if self._authorities is None:
            namespaces = self._catalog.namespaces()
            is_only = len(namespaces) == 1
            self._authorities = [self._authority(n, is_only=is_only) for n in namespaces]
        return self._authorities

    def _invalidate(self, change: CatalogChange) -> None:
        if isinstance(change.entity, Namespace):
            self._authorities = None

    def _is_shared(self, host: str) -> bool:
        return host in self._shared or is_loopback(host)

    def _authority(self, namespace: Namespace, *, is_only: bool) -> Authority:
        name, catalog = namespace.name, self._catalog

        def rule(hub: str | None, rule_name: str) -> AuthorizationRule | None:
            return catalog.rule(name, hub, rule_name)

        def hub(hub_name: str) -> HubName | None:
            found = catalog.hub(name, hub_name)
            return None if found is None else found.name

        return Authority(
            namespace=name,
            hosts=frozenset(host.casefold() for host in namespace.hosts),
            rule=rule,
            hub=hub,
            hubs=lambda: [found.name for found in catalog.hubs(name)],
            is_reached_by=(lambda _host: True) if is_only else self._is_shared,
        )
