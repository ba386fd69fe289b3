"""Writes usage to the ledger, and raises throughput units (auto-inflate).

Counts are written two seconds after they changed, on a thread of their own: no publication waits
for that, and a process that is killed loses what it counted since. docs/reference/metering.md
explains why nothing is counted twice.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from penstock.broker.accounts import Account, Accounts
from penstock.catalog.api import Catalog, CatalogChange, UsageLedger
from penstock.io.threads import StartedThreads
from penstock.model.clock import Clock
from penstock.model.entities import AuditEntry, Hub, Namespace, Tier
from penstock.model.errors import PenstockError
from penstock.model.names import fold_name
from penstock.model.quotas import next_allowed_units
from penstock.model.usage import HOUR_MS, Usage, hour_of
from penstock.service.periodic_tasks import PeriodicTask

_log = logging.getLogger(__name__)

WRITE_AFTER_S = 2.0  # after the first change: what a kill -9 may lose, and how late usage is shown
_RETRY_S = 10.0  # after a failed write: the disk may be full or slow
_LOOK_AGAIN_S = 60.0  # the wall clock may be set, and the hour then ends at another moment
_INFLATED_S = 0.25  # the span of a token bucket: new units take effect within it
_REFUSED_S = 60.0
_PURCHASE = "purchase"  # `Usage.run` of units that were stored but not counted before a kill


@dataclass(eq=False)
class UsageRecorder:
    """Records usage from `start` to `stop`. `process` is a name that no other process has used. Use
    it on the event loop's thread."""

    accounts: Accounts
    catalog: Catalog
    ledger: UsageLedger
    clock: Clock
    loop: asyncio.AbstractEventLoop
    process: str

    def __post_init__(self) -> None:
        self.task = PeriodicTask(
            "metering", self._write, self.clock, interval_s=_LOOK_AGAIN_S, pause_s=self._pause_s
        )
        self._thread = StartedThreads(1, "penstock-ledger")
        self._purchases: list[Usage] = []  # not written yet
        self._pass_at_ms = 0  # when the counts of a past hour are closed next
        self._partitions: dict[str, int] = {}  # of each namespace
        self._notes: dict[str, str] = {}  # by namespace
        self._unsubscribe: Callable[[], None] | None = None

    async def start(self) -> None:
        """On return the units of this hour are in the ledger, before anything is published."""
        self.accounts.on_change = self._schedule_write
        self.accounts.on_short = self._short
        self._unsubscribe = self.catalog.subscribe(self._on_change)
        for namespace in self.catalog.namespaces():
            hubs = self.catalog.hubs(namespace.name)
            self._partitions[fold_name(namespace.name)] = sum(hub.partition_count for hub in hubs)
            self._judge_units(namespace.name)
        self._purchases = [
            Usage(
                namespace=namespace.name,
                hour_ms=hour_of(namespace.updated_ms),
                run=_PURCHASE,
                units=namespace.throughput_units,
            )
            for namespace in self.catalog.namespaces()
            if namespace.throughput_units is not None and namespace.tier is Tier.STANDARD
        ]
        await self.task.run_once()
        self.task.start()

    async def stop(self) -> None:
        """Write everything that was counted, if the disk permits."""
        self.accounts.on_change = self.accounts.on_short = _do_nothing
        if self._unsubscribe is not None:
            self._unsubscribe()
        self._pass_at_ms = 0
        await self.task.finish()
        self._thread.shutdown()

    @property
    def notes(self) -> tuple[str, ...]:
        """Warnings of `/ready` that need no action at once."""
        return tuple(self._notes.values())

    # --- writing --------------------------------------------------------------------------------

    def _schedule_write(self) -> None:
        self.task.wake(after_s=WRITE_AFTER_S)

    def _pause_s(self) -> float:
        """The counts of an hour are closed when it ends."""
        to_turn_s = (HOUR_MS - self.clock.now_ms() % HOUR_MS) / 1000
        return min(to_turn_s, _LOOK_AGAIN_S)

    async def _write(self) -> None:
        """A pass: write what has changed. Raises PenstockError."""
        monotonic_ms = self.clock.monotonic_ms()
        try:
            if monotonic_ms >= self._pass_at_ms:  # not with each write: it visits every hub
                self.accounts.pass_to(self.clock.now_ms())
                self._pass_at_ms = monotonic_ms + int(self._pause_s() * 1000)
        finally:
            await self._write_counts()

    async def _write_counts(self) -> None:
        counts = self.accounts.counts()
        is_written = False
        try:
            named = [
                msgspec.structs.replace(usage, run=f"{self.process}-{usage.run}")
                for _, usages in counts
                for usage in usages
            ]
            if usages := [*self._purchases, *named]:
                await self.loop.run_in_executor(self._thread, self.ledger.record, usages)
            is_written = True
        finally:
            if is_written:
                self._purchases = []
                self.accounts.confirm_written(counts)
            else:
                self.accounts.retain_unwritten(counts)
                self.task.wake(after_s=_RETRY_S)

    # --- units ----------------------------------------------------------------------------------

    def _short(self, account: Account) -> None:
        """Inflate in the next turn of the loop: this call stack is refusing a publication."""
        self.loop.call_soon(self._inflate, account)

    def _inflate(self, account: Account) -> None:
        """Auto-inflate: raise the units by one step. They are never lowered."""
        answer_after_s = _INFLATED_S
        namespace = self.catalog.namespace(account.namespace)
        if namespace is not None and (more := _raise_units(namespace, self.clock.now_ms())):
            try:
                self.catalog.put_namespace(more[0], audit=more[1])
                _log.info("auto-inflate: %s", more[1].detail)
            except PenstockError as error:
                _log.warning("auto-inflate is refused: %s", error)
                answer_after_s = _REFUSED_S
        self.loop.call_later(answer_after_s, account.end_request)

    def _on_change(self, change: CatalogChange) -> None:
        """Update the partition counts by the change alone: there may be thousands of hubs."""
        match change.entity:
            case Namespace(name=name):
                if change.after is None:
                    self._partitions.pop(fold_name(name), None)
                    self._notes.pop(fold_name(name), None)
                else:
                    self._judge_units(name)
            case Hub(namespace=name, partition_count=count):
                if change.before is None or change.after is None:
                    more = count if change.before is None else -count
                    self._partitions[fold_name(name)] = (
                        self._partitions.get(fold_name(name), 0) + more
                    )
                    self._judge_units(name)

    def _judge_units(self, name: str) -> None:
        namespace = self.catalog.namespace(name)
        note: str | None = None
        if namespace is not None:
            note = _idle_units_note(namespace, self._partitions.get(fold_name(name), 0))
        if note is None:
            self._notes.pop(fold_name(name), None)
        elif self._notes.get(fold_name(name)) != note:
            _log.warning("%s", note)
            self._notes[fold_name(name)] = note


def _raise_units(namespace: Namespace, now_ms: int) -> tuple[Namespace, AuditEntry] | None:
    units, most = namespace.throughput_units, namespace.maximum_throughput_units
    if units is None or most is None or units >= most:
        return None
    more = min(next_allowed_units(units), most)
    entry = AuditEntry(
        at_ms=now_ms,
        who="auto-inflate",
        what="units.inflated",
        detail=f"'{namespace.name}' holds {more} throughput units, after {units}: at most {most}",
    )
    return msgspec.structs.replace(namespace, throughput_units=more, updated_ms=now_ms), entry


def _idle_units_note(namespace: Namespace, partitions: int) -> str | None:
    """A partition accepts at most one unit of traffic: more units than partitions are useless."""
    units = namespace.throughput_units
    if units is None or namespace.tier is not Tier.STANDARD or units <= max(partitions, 1):
        return None
    return (
        f"The namespace '{namespace.name}' holds {units} throughput units, but its event hubs have "
        f"{partitions} partitions in all: each takes at most one unit's worth."
    )


def _do_nothing(account: Account | None = None) -> None:
    """Callback of the accounts after `stop`."""
