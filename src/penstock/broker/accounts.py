"""Account of each namespace: its throttle, egress limit and usage meter together."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable

from penstock.broker.egress import EgressLimiter, Later
from penstock.broker.throttle import Throttle
from penstock.broker.usage_meter import UsageMeter
from penstock.model.clock import Clock
from penstock.model.entities import Namespace, Tier
from penstock.model.names import fold_name
from penstock.model.usage import Usage

Counts = list[tuple[UsageMeter, list[Usage]]]


class Account:
    """Throttle, egress limit and usage meter of one namespace, shared by all its hubs."""

    def __init__(self, namespace: Namespace, accounts: Accounts) -> None:
        self.namespace = namespace.name
        self._namespace = namespace
        self._accounts = accounts
        self._is_asking = False  # `on_short` was called and `end_request` not yet
        units = enforced_units(namespace)
        self.meter = UsageMeter(
            namespace.name,
            _metered_units(namespace),
            now_ms=accounts.clock.now_ms(),
            runs=accounts.runs.__next__,
            on_change=lambda: accounts.on_change(),
        )
        self.throttle = Throttle(units, on_short=self._request_units)
        self.egress = EgressLimiter(
            units,
            self.meter,
            clock=accounts.clock,
            later=accounts.later,
            on_short=self._request_units,
        )

    def follow(self, namespace: Namespace, now_ms: int) -> None:
        """Apply a change of the namespace in the catalog."""
        self._namespace = namespace
        self.throttle.set_units(enforced_units(namespace))
        self.egress.set_units(enforced_units(namespace))
        self.meter.hold(_metered_units(namespace), now_ms)

    def end_request(self) -> None:
        """Auto-inflate has answered, with more units or without: the account may ask again."""
        self._is_asking = False

    def _request_units(self) -> None:
        """Units are used up: ask auto-inflate for more, once until `end_request`."""
        namespace = self._namespace
        units, most = namespace.throughput_units, namespace.maximum_throughput_units
        if most is None or units is None or units >= most or self._is_asking:
            return
        self._is_asking = True
        self._accounts.on_short(self)


class Accounts:
    """The accounts of all namespaces.

    The usage recorder sets `on_change`, and auto-inflate sets `on_short`. Without them usage is
    counted but not written, and units stay as they are.
    """

    def __init__(self, clock: Clock, *, later: Later | None) -> None:
        self.on_change: Callable[[], None] = lambda: None
        self.on_short: Callable[[Account], None] = lambda _: None
        self.clock = clock
        self.later = later
        self.runs = itertools.count(1)
        self._by_name: dict[str, Account] = {}
        # Of deleted namespaces, until their counts are written.
        self._closed_meters: list[UsageMeter] = []

    def of(self, namespace: Namespace) -> Account:
        """The account of the namespace, created if there is none."""
        name = fold_name(namespace.name)
        if name not in self._by_name:
            self._by_name[name] = Account(namespace, self)
        return self._by_name[name]

    def find(self, namespace: str) -> Account | None:
        return self._by_name.get(fold_name(namespace))

    def follow(self, namespaces: Iterable[Namespace]) -> None:
        """Apply the current list of all namespaces; accounts of deleted ones are closed."""
        now_ms = self.clock.now_ms()
        existing = {fold_name(namespace.name): namespace for namespace in namespaces}
        for name in self._by_name.keys() - existing.keys():
            self._closed_meters.append(self._by_name.pop(name).meter)
        for namespace in existing.values():
            self.of(namespace).follow(namespace, now_ms)

    def accounts(self) -> list[Account]:
        return list(self._by_name.values())

    def pass_to(self, now_ms: int) -> None:
        """Advance all meters to `now_ms`: held units count in a new hour as well."""
        for account in self._by_name.values():
            account.meter.pass_to(now_ms)

    def counts(self) -> Counts:
        """Counts of each changed meter. The caller writes them, then calls `confirm_written` or
        `retain_unwritten`."""
        meters = [account.meter for account in self._by_name.values()]
        changed = [meter for meter in meters if meter.is_changed]
        return [(meter, meter.counts()) for meter in (*changed, *self._closed_meters)]

    def confirm_written(self, counts: Counts) -> None:
        for meter, usages in counts:
            meter.confirm_written(usages)
        written = [meter for meter, _ in counts]
        self._closed_meters = [meter for meter in self._closed_meters if meter not in written]

    def retain_unwritten(self, counts: Counts) -> None:
        for meter, _ in counts:
            meter.retain_unwritten()


def enforced_units(namespace: Namespace) -> int | None:
    """The units to enforce; None for a dedicated namespace, which has no throughput units."""
    return None if namespace.tier is Tier.DEDICATED else namespace.throughput_units


def _metered_units(namespace: Namespace) -> int | None:
    return 0 if namespace.tier is Tier.DEDICATED else namespace.throughput_units
