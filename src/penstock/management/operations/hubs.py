"""Event hubs and their revoked publishers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from penstock.capture.description import check_description, parse_description
from penstock.capture.destinations import resolve_destination
from penstock.capture.runs import RUNS_MAX, add_location, end_run, start_run
from penstock.management import resources as arm
from penstock.management.operations.base import OWN_HUB, OperationGroup, format_path
from penstock.management.permissions import Action
from penstock.management.router import RouteTable
from penstock.model import limits, names
from penstock.model.capture import HubCapture
from penstock.model.entities import Hub, HubStatus, RevokedPublisher
from penstock.model.errors import ArgumentError, NotAllowed

_HOURS_PER_DAY = 24
_PUBLISHER = OWN_HUB + "/revokedPublishers/{publisher}"

ROUTES = RouteTable("hubs")


class HubOperations(OperationGroup):
    def list(self, namespace: str) -> list[Hub]:
        self._permit(Action.HUB_READ, namespace)
        self._namespace(namespace)
        return self._catalog.hubs(namespace)

    def show(self, namespace: str, name: str) -> Hub:
        """Raises NotFound."""
        return self._find_hub(Action.HUB_READ, namespace, name)

    def put(self, namespace: str, name: str, body: arm.HubBody) -> Hub:
        """Create or change it. NotAllowed for another partition count: it is fixed at creation.
        ArgumentError for Capture to a destination that the configuration does not name."""
        self._permit(Action.HUB_WRITE, namespace, name)
        parent = self._namespace(namespace)
        old = self._catalog.hub(namespace, name)
        now_ms = self._now_ms()
        blank = old or Hub(
            id=self._context.new_hub_id(),
            namespace=parent.name,
            name=names.hub_name(name),
            partition_count=limits.PARTITION_COUNT_DEFAULT,
            created_ms=now_ms,
            updated_ms=now_ms,
        )
        wanted = _apply_request(blank, body, now_ms, is_new=old is None)
        self._check_destination(wanted, old)
        is_enabled = wanted.capture.is_enabled
        if is_enabled != (old is not None and old.capture.is_enabled):
            wanted = self._update_capture_runs(wanted, old, now_ms)
        if old is not None and msgspec.structs.replace(wanted, updated_ms=old.updated_ms) == old:
            return old
        self._catalog.put_hub(wanted)
        self._record(
            Action.HUB_WRITE,
            f"{format_path(parent.name, wanted.name)}: {wanted.partition_count} partitions, "
            f"{wanted.retention_hours} hours, {wanted.status}, "
            f"Capture {'on' if is_enabled else 'off'}",
        )
        return self._hub(namespace, name)

    def _check_destination(self, hub: Hub, old: Hub | None) -> None:
        """A stored description may stay when its destination has left the configuration; it may
        not be switched on again."""
        description = hub.capture.description or {}
        before = {} if old is None else old.capture.description or {}
        is_switched_on = hub.capture.is_enabled and not before.get("enabled")
        destination = description.get("destination")
        if destination is None or (destination == before.get("destination") and not is_switched_on):
            return
        settings = parse_description(description)
        resolve_destination(
            self._context.captures.destinations, settings.account, settings.container
        )

    def _update_capture_runs(self, hub: Hub, old: Hub | None, now_ms: int) -> Hub:
        """Start or end a run with the next event of each partition, whenever a job gets to it."""
        if old is None:
            ends = {str(index): 0 for index in range(hub.partition_count)}
        else:
            ends = self._context.broker.hub(old.namespace, old.name).next_sequences()
        capture = hub.capture
        if not capture.is_enabled:
            before = None if old is None else old.capture.description
            return hub.replace_capture(end_run(capture, ends, at_ms=now_ms, description=before))
        if len(capture.runs) >= RUNS_MAX:
            raise NotAllowed(
                f"Capture of '{names.quote_text(hub.name)}' was switched on and off "
                f"{len(capture.runs)} times, and what was published meanwhile is in no file yet: "
                "try again when 'penstock capture status' shows no backlog."
            )
        run_id = self._context.new_hub_id()
        return hub.replace_capture(
            start_run(capture, ends, run_id=run_id, at_ms=now_ms, created_ms=hub.created_ms)
        )

    def delete(self, namespace: str, name: str) -> None:
        """Delete the hub and its log, at once and for good. Raises NotFound."""
        hub = self._find_hub(Action.HUB_DELETE, namespace, name)
        self._catalog.delete_hub(namespace, name)
        self._record(Action.HUB_DELETE, format_path(hub.namespace, hub.name))

    @ROUTES.add("GET", f"{OWN_HUB}/revokedPublishers")
    def list_revoked_publishers(self, namespace: str, hub: str) -> Sequence[RevokedPublisher]:
        self._find_hub(Action.PUBLISHER_READ, namespace, hub)
        return self._catalog.revoked_publishers(namespace, hub)

    @ROUTES.add("PUT", _PUBLISHER)
    def revoke_publisher(self, namespace: str, hub: str, publisher: str) -> RevokedPublisher:
        """Refuse events of the publisher and close its links. A second call changes nothing."""
        parent = self._find_hub(Action.PUBLISHER_REVOKE, namespace, hub, publisher)
        existing = self._catalog.revoked_publisher(namespace, hub, publisher)
        if existing is not None:
            return existing
        revoked = RevokedPublisher(
            namespace=parent.namespace,
            hub=parent.name,
            name=names.publisher_name(publisher),
            revoked_ms=self._now_ms(),
        )
        self._catalog.put_revoked_publisher(revoked)
        self._record(Action.PUBLISHER_REVOKE, format_path(parent.namespace, parent.name, publisher))
        return revoked

    @ROUTES.add("DELETE", _PUBLISHER)
    def resume_publisher(self, namespace: str, hub: str, publisher: str) -> None:
        """Raises NotFound when the publisher is not revoked."""
        parent = self._find_hub(Action.PUBLISHER_RESUME, namespace, hub, publisher)
        self._catalog.delete_revoked_publisher(namespace, hub, publisher)
        self._record(Action.PUBLISHER_RESUME, format_path(parent.namespace, parent.name, publisher))


def to_days(hours: int) -> int:
    """Whole days, as the API's older field has them."""
    return -(-hours // _HOURS_PER_DAY)


def _apply_request(old: Hub, body: arm.HubBody, now_ms: int, *, is_new: bool) -> Hub:
    request = body.properties or arm.HubBodyProperties()
    retention = request.retention_description or arm.RetentionDescription()
    timestamp = request.message_timestamp_description or arm.TimestampDescription()
    if (timestamp.timestamp_type or "LogAppend") != "LogAppend":
        raise NotAllowed(
            "messageTimestampDescription.timestampType: only LogAppend is supported: events "
            "have the time at which they were stored."
        )
    if retention.tombstone_retention_time_in_hours:
        raise NotAllowed(
            "retentionDescription.tombstoneRetentionTimeInHours belongs to log compaction, "
            "which is not supported."
        )
    if retention.cleanup_policy not in (None, "Delete"):
        policy = names.quote_text(str(retention.cleanup_policy))
        raise NotAllowed(
            f"retentionDescription.cleanupPolicy is '{policy}': only Delete is supported."
        )
    if request.capture_description is not None:
        old = old.replace_capture(_change_description(old.capture, request.capture_description))
    changes: dict[str, Any] = {
        "partition_count": request.partition_count,
        "status": None if request.status is None else _checked_status(request.status),
        "user_metadata": request.user_metadata,
    }
    hours = retention.retention_time_in_hours
    return msgspec.structs.replace(
        old,
        retention_hours=_retention_hours(
            old, request.message_retention_in_days, hours, is_new=is_new
        ),
        updated_ms=now_ms,
        **{field: value for field, value in changes.items() if value is not None},
    )


def _change_description(capture: HubCapture, request: Mapping[str, Any]) -> HubCapture:
    """Check and store a new captureDescription. The location of files that were captured before
    is remembered for those who read or verify them. Raises ArgumentError, ArgumentOutOfRange."""
    before = capture.description
    is_only_off = not request.get("enabled") and request.get("destination") is None
    if before and is_only_off:
        # `{"enabled": false}` alone keeps the rest: events not yet in a file need a destination.
        given = {key: value for key, value in request.items() if value is not None}
        request = {**before, "enabled": False, **given}
    description = check_description(request)
    places = capture.places
    if before is not None and (capture.runs or capture.past is not None):
        old_location = parse_description(before).location
        if old_location.account and old_location != parse_description(description).location:
            places = add_location(places, old_location)
    return msgspec.structs.replace(capture, description=description, places=places)


def _retention_hours(old: Hub, days: int | None, hours: int | None, *, is_new: bool) -> int:
    """Two fields for one thing: a client that reads, changes one and writes both back means the
    one that it changed."""
    if not is_new:
        days = None if days == to_days(old.retention_hours) else days
        hours = None if hours == old.retention_hours else hours
    if days is not None and hours is not None and to_days(hours) != days:
        raise ArgumentError(
            f"messageRetentionInDays is {days} and retentionTimeInHours {hours}: "
            "they contradict each other; give one."
        )
    if hours is not None:
        return hours
    return old.retention_hours if days is None else days * _HOURS_PER_DAY


def _checked_status(given: str) -> HubStatus:
    try:
        return HubStatus(given)
    except ValueError:
        raise ArgumentError(
            f"The status '{names.quote_text(given)}' cannot be set: {', '.join(HubStatus)} "
            "are allowed."
        ) from None
