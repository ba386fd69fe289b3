"""Event hubs and their revoked publishers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from penstock.capture import description as capture
from penstock.capture import runs as capture_runs
from penstock.capture.destinations import resolve_destination
from penstock.management.operations.base import OperationGroup, format_path
from penstock.management.permissions import Action
from penstock.model import limits, names
from penstock.model.entities import Hub, HubStatus, RevokedPublisher
from penstock.model.errors import ArgumentError, NotAllowed

_HOURS_PER_DAY = 24


class HubRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The requested state of a hub. None leaves a field unchanged; a new hub gets the default."""

    partition_count: int | None = None
    retention_days: int | None = None
    retention_hours: int | None = None
    cleanup_policy: str | None = None
    status: str | None = None
    user_metadata: str | None = None
    capture: Mapping[str, Any] | None = None


class HubOperations(OperationGroup):
    def list(self, namespace: str) -> list[Hub]:
        self._permit(Action.HUB_READ, namespace)
        self._namespace(namespace)
        return self._catalog.hubs(namespace)

    def show(self, namespace: str, name: str) -> Hub:
        """Raises NotFound."""
        return self._find_hub(Action.HUB_READ, namespace, name)

    def put(self, namespace: str, name: str, request: HubRequest) -> Hub:
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
        wanted = _apply_request(blank, request, now_ms, is_new=old is None)
        self._check_destination(wanted, old)
        if is_captured(wanted) != (old is not None and is_captured(old)):
            wanted = self._update_capture_runs(wanted, old, now_ms)
        if old is not None and msgspec.structs.replace(wanted, updated_ms=old.updated_ms) == old:
            return old
        self._catalog.put_hub(wanted)
        self._record(
            Action.HUB_WRITE,
            f"{format_path(parent.name, wanted.name)}: {wanted.partition_count} partitions, "
            f"{wanted.retention_hours} hours, {wanted.status}, "
            f"Capture {'on' if is_captured(wanted) else 'off'}",
        )
        return self._hub(namespace, name)

    def _check_destination(self, hub: Hub, old: Hub | None) -> None:
        """A stored description may stay when its destination has left the configuration; it may
        not be switched on again."""
        description = hub.metadata.get("capture", {})
        before = {} if old is None else old.metadata.get("capture", {})
        is_switched_on = is_captured(hub) and not before.get("enabled")
        destination = description.get("destination")
        if destination is None or (destination == before.get("destination") and not is_switched_on):
            return
        settings = capture.CaptureDescription.of(description)
        resolve_destination(
            self._context.captures.destinations, settings.account, settings.container
        )

    def _update_capture_runs(self, hub: Hub, old: Hub | None, now_ms: int) -> Hub:
        """Capture goes on or off with the event that comes next, whenever a job comes to it."""
        if old is None:
            ends = {str(index): 0 for index in range(hub.partition_count)}
        else:
            runtime = self._context.broker.hub(old.namespace, old.name)
            ends = {
                partition: runtime.status(index).last_sequence + 1
                for index, partition in enumerate(runtime.partition_ids)
            }
        runs = capture_runs.load_runs(hub.metadata.get("captureRuns"))
        if is_captured(hub):
            if len(runs) >= capture_runs.RUNS_MAX:
                raise NotAllowed(
                    f"Capture of '{names.quote_text(hub.name)}' was switched on and off "
                    f"{len(runs)} "
                    "times, and what was published meanwhile is in no file yet: try again when "
                    "'penstock capture status' shows no backlog."
                )
            runs = capture_runs.start_run(
                runs,
                ends,
                run_id=self._context.new_hub_id(),
                at_ms=now_ms,
                created_ms=hub.created_ms,
                past=capture_runs.load_history(hub.metadata.get("capturePast")),
            )
        else:
            before = None if old is None else old.metadata.get("capture")
            runs = capture_runs.end_run(runs, ends, at_ms=now_ms, description=before)
        metadata = hub.metadata | {"captureRuns": capture_runs.dump_runs(runs)}
        return msgspec.structs.replace(hub, metadata=metadata)

    def delete(self, namespace: str, name: str) -> None:
        """Delete the hub and its log, at once and for good. Raises NotFound."""
        hub = self._find_hub(Action.HUB_DELETE, namespace, name)
        self._catalog.delete_hub(namespace, name)
        self._record(Action.HUB_DELETE, format_path(hub.namespace, hub.name))

    def list_revoked_publishers(self, namespace: str, hub: str) -> Sequence[RevokedPublisher]:
        self._find_hub(Action.PUBLISHER_READ, namespace, hub)
        return self._catalog.revoked_publishers(namespace, hub)

    def revoke_publisher(self, namespace: str, hub: str, name: str) -> RevokedPublisher:
        """Refuse events of the publisher and close its links. A second call changes nothing."""
        parent = self._find_hub(Action.PUBLISHER_REVOKE, namespace, hub, name)
        existing = self._catalog.revoked_publisher(namespace, hub, name)
        if existing is not None:
            return existing
        revoked = RevokedPublisher(
            namespace=parent.namespace,
            hub=parent.name,
            name=names.publisher_name(name),
            revoked_ms=self._now_ms(),
        )
        self._catalog.put_revoked_publisher(revoked)
        self._record(Action.PUBLISHER_REVOKE, format_path(parent.namespace, parent.name, name))
        return revoked

    def resume_publisher(self, namespace: str, hub: str, name: str) -> None:
        """Raises NotFound when the publisher is not revoked."""
        parent = self._find_hub(Action.PUBLISHER_RESUME, namespace, hub, name)
        self._catalog.delete_revoked_publisher(namespace, hub, name)
        self._record(Action.PUBLISHER_RESUME, format_path(parent.namespace, parent.name, name))


def is_captured(hub: Hub) -> bool:
    return bool(hub.metadata.get("capture", {}).get("enabled"))


def to_days(hours: int) -> int:
    """Whole days, as the API's older field has them."""
    return -(-hours // _HOURS_PER_DAY)


def _apply_request(old: Hub, request: HubRequest, now_ms: int, *, is_new: bool) -> Hub:
    metadata = dict(old.metadata)
    if request.capture is not None:
        metadata["capture"] = capture.check_description(
            _keep_unset_fields(request.capture, old.metadata.get("capture"))
        )
        metadata |= _previous_location(old, metadata["capture"])
    if request.cleanup_policy not in (None, "Delete"):
        raise NotAllowed(
            "retentionDescription.cleanupPolicy is "
            f"'{names.quote_text(str(request.cleanup_policy))}': "
            "only Delete is supported."
        )
    return msgspec.structs.replace(
        old,
        partition_count=(
            old.partition_count if request.partition_count is None else request.partition_count
        ),
        retention_hours=_retention_hours(old, request, is_new=is_new),
        status=old.status if request.status is None else _checked_status(request.status),
        user_metadata=(
            old.user_metadata if request.user_metadata is None else request.user_metadata
        ),
        metadata=metadata,
        updated_ms=now_ms,
    )


def _keep_unset_fields(
    wanted: Mapping[str, Any], before: Mapping[str, Any] | None
) -> Mapping[str, Any]:
    """Who only says that it shall be off (`{"enabled": false}`) means it as it is otherwise: its
    files are where they are, and what is not written yet has to go somewhere."""
    if wanted.get("enabled") or wanted.get("destination") is not None or not before:
        return wanted
    given = {key: value for key, value in wanted.items() if value is not None}
    return {**before, "enabled": False, **given}


def _previous_location(old: Hub, description: Mapping[str, Any]) -> dict[str, Any]:
    """Files that were captured before stay where they are: the place is kept in mind for who
    reads or proves them."""
    if not {"captureRuns", "capturePast"} & old.metadata.keys():
        return {}  # never captured: there are none
    before = capture.CaptureDescription.of(old.metadata["capture"]).place
    now = capture.CaptureDescription.of(description).place
    kept = old.metadata.get("capturePlaces")
    if before == now or not before.account:
        return {}
    return {"capturePlaces": capture_runs.add_location(kept, before)}


def _retention_hours(old: Hub, request: HubRequest, *, is_new: bool) -> int:
    """Two fields for one thing: a client that reads, changes one and writes both back means the
    one that it changed."""
    days, hours = request.retention_days, request.retention_hours
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
