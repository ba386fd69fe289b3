"""Manifests of complete slots, and CaptureFileCreated notifications.

Both follow from the job's state and are marked there when done, so each happens at least once
whatever is killed; a manifest is the same each time, and so is the id of a notification.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from penstock.capture import captured_file, file_names
from penstock.capture.captured_file import CapturedFile, Manifest
from penstock.capture.destinations import resolve_destination
from penstock.capture.state import CaptureStateFile, ManifestSlot
from penstock.capture.storage import FileStore
from penstock.capture.windows import WindowStart
from penstock.model.errors import PenstockError
from penstock.spark.capture.plan import CapturePlan
from penstock.spark.capture.window_writer import restore_file

_TIMEOUT_S = 30.0
_FILES_MAX = 100  # of one request
_SLOTS_MAX = 50  # of one call: a few seconds with Blob storage
_CONTENT_TYPES = {
    "eventgrid": "application/json; charset=utf-8",
    "cloudevents": "application/cloudevents-batch+json; charset=utf-8",
}


class NotificationTarget(msgspec.Struct, frozen=True, kw_only=True):
    """Where CaptureFileCreated events go: a webhook, or a hub of the same namespace."""

    url: str = ""
    hub: str = ""
    format: str = "eventgrid"

    def __repr__(self) -> str:  # the URL may contain a key
        return f"NotificationTarget(hub={self.hub!r}, format={self.format!r})"


class NotificationFailed(PenstockError):
    """The webhook did not accept the events; they are sent again."""

    retriable = True


def write_manifests(plan: CapturePlan, state: CaptureStateFile) -> int:
    """Write the manifests of slots that no open window can close in any more; returns how many.

    A limited number of slots per call: the job has other runs. Files that storage has lost are
    restored first. Slots are independent: the first PenstockError is raised after the others were
    tried, and each failed slot is tried again at the next call.
    """
    before_s = _complete_before(plan, state.starts())
    count, failure = 0, None
    for slot in state.slots(before_s, _SLOTS_MAX):
        try:
            _write_slot(plan, state, slot)
        except PenstockError as error:
            failure = failure or error
        else:
            state.mark_manifest_written(slot)
            count += 1
    if failure is not None:
        raise failure
    return count


def _complete_before(plan: CapturePlan, starts: Mapping[str, WindowStart]) -> int:
    """No window of the run gets a name before this second any more. Finished partitions do not
    count; one that has closed no window yet may do so at any time."""
    stops = plan.stops
    open_s = [
        starts[key].named_s + 1 if key in starts else 0
        for key, first in plan.starts.items()
        if stops is None or (starts[key].sequence if key in starts else first) < stops.get(key, 0)
    ]
    return min(open_s, default=2**62)


def _write_slot(plan: CapturePlan, state: CaptureStateFile, slot: ManifestSlot) -> None:
    """A manifest is stored beside its files, also where new ones go elsewhere by now."""
    current = (plan.settings.account, plan.settings.container)
    by_place: dict[tuple[str, str], list[CapturedFile]] = {}
    for file in state.slot_files(slot):
        place = (file.account, file.container) if file.account else current
        by_place.setdefault(place, []).append(file)
    # A slot whose windows had no events has a manifest too: it says that nothing is missing.
    for place, files in (by_place or {current: []}).items():
        store = FileStore(resolve_destination(plan.destinations, *place))
        files = [
            file if store.size(file.path) == file.bytes else restore_file(plan, state, file)
            for file in files
        ]
        path = file_names.manifest_path(plan.hub, slot.begin_s)
        slot_s, length_s = slot.begin_s, slot.end_s - slot.begin_s
        stored = _read_manifest(store, path)
        manifest = captured_file.build_manifest(
            plan.namespace, plan.hub, slot_s, length_s, files, stored
        )
        store.put_bytes(manifest.encode(), path, plan.spool)


def _read_manifest(store: FileStore, path: str) -> Manifest | None:
    """The stored manifest; None when there is none, or something else."""
    if store.size(path) is None:
        return None
    with store.open(path) as opened, contextlib.suppress(msgspec.MsgspecError):
        return captured_file.decode_manifest(opened.read())
    return None


def announce_files(
    plan: CapturePlan, state: CaptureStateFile, target: NotificationTarget | None
) -> int:
    """Announce all files that were not announced yet; returns how many. Without a target they only
    count as announced. Raises PenstockError."""
    count = 0
    while files := state.unannounced_files(_FILES_MAX):
        if target is not None:
            topic = f"/providers/Microsoft.EventHub/namespaces/{plan.namespace}"
            is_cloud = target.format == "cloudevents"
            events = [
                captured_file.build_file_created_event(
                    file, topic=topic, hub=plan.hub, cloud=is_cloud
                )
                for file in files
            ]
            send_events(plan, target, events)
        state.mark_announced(files)
        count += len(files)
    return count


def send_events(
    plan: CapturePlan, target: NotificationTarget, events: Sequence[Mapping[str, Any]]
) -> None:
    """Raises ClientError, NotificationFailed."""
    if target.url:
        post_events(target.url, events, content_type=_CONTENT_TYPES[target.format])
    else:
        asyncio.run(_publish(plan, target.hub, events))


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Only the configured address gets the events."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def post_events(url: str, events: Sequence[Mapping[str, Any]], *, content_type: str) -> None:
    """Raises NotificationFailed, which does not show the URL: it may contain a key."""
    request = urllib.request.Request(  # noqa: S310  # https, or http on this machine: checked
        url,
        data=json.dumps(list(events)).encode(),
        headers={"Content-Type": content_type, "aeg-event-type": "Notification"},
        method="POST",
    )
    opener = urllib.request.build_opener(_NoRedirect())
    try:
        with opener.open(request, timeout=_TIMEOUT_S) as response:
            status = response.status
    except urllib.error.HTTPError as error:
        status = error.code
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or type(error).__name__
        raise NotificationFailed(
            f"The webhook for captured files cannot be reached: {reason}."
        ) from None
    if not 200 <= status < 300:
        raise NotificationFailed(f"The webhook for captured files answered {status}.")


async def _publish(plan: CapturePlan, hub: str, events: Sequence[Mapping[str, Any]]) -> None:
    from penstock.client import EventData, EventHubProducerClient

    producer = EventHubProducerClient(
        plan.connection_string, eventhub_name=hub, ca_file=plan.ca_file, timeout_s=_TIMEOUT_S
    )
    async with producer:
        for event in events:
            data = EventData(json.dumps(event), content_type="application/json")
            await producer.send_event(data)
