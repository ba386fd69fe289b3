"""After the file: manifests of slots that are complete, and word to others of each file.

Both are read off the ledger and marked there when done, so each happens at least once, whatever is
killed when; a manifest is the same each time, and an event has the same id.
"""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from penstock.capture import file_names
from penstock.capture.captured_file import (
    CapturedFile,
    add_files_to_manifest,
    build_file_created_event,
    build_manifest,
    is_manifest,
    manifest_bytes,
)
from penstock.capture.destinations import FileStore, resolve_destination
from penstock.capture.ledger import CaptureStateFile, ManifestSlot
from penstock.capture.windows import WindowStart
from penstock.model.errors import PenstockError
from penstock.spark.capture.plan import CapturePlan
from penstock.spark.capture.repair import repaired

_HOOK_S = 30.0
_AT_ONCE = 100  # files that are told of in one request
_SLOTS_AT_ONCE = 50  # a few seconds of Blob's time
_CONTENT = {
    "eventgrid": "application/json; charset=utf-8",
    "cloudevents": "application/cloudevents-batch+json; charset=utf-8",
}


class NotificationTarget(msgspec.Struct, frozen=True, kw_only=True):
    """Who hears of files: a hook's address, or a hub of the same namespace; or nobody."""

    url: str = ""
    hub: str = ""
    format: str = "eventgrid"

    def __repr__(self) -> str:  # the address may hold a key
        return f"Notify(hub={self.hub!r}, format={self.format!r})"


class NotificationFailed(PenstockError):
    """The hook did not take the events; they are sent again."""

    retriable = True


Send = Callable[[CapturePlan, Sequence[Mapping[str, Any]]], None]


def write_manifests(plan: CapturePlan, ledger: CaptureStateFile) -> int:
    """Of slots that no open window can close in any more; how many were written. At most so many
    at a time: the job has others to look after. Files that storage has lost meanwhile are written
    again first. A slot that cannot be written does not hold up the others: the first reason is
    raised at the end, a PenstockError, and each is tried again at the next call."""
    before_s = _complete_before(plan, ledger.places())
    written, failed = 0, None
    for slot in ledger.slots(before_s, _SLOTS_AT_ONCE):
        try:
            _write_slot(plan, ledger, slot)
        except PenstockError as error:
            failed = failed or error
        else:
            ledger.mark_manifest_written(slot)
            written += 1
    if failed is not None:
        raise failed
    return written


def _complete_before(plan: CapturePlan, places: Mapping[str, WindowStart]) -> int:
    """No window of the run will be named before that second. Partitions that are done do not
    count; one that has not closed a window yet may do so at any time."""
    stops = plan.stops
    open_s = [
        places[key].named_s + 1 if key in places else 0
        for key, first in plan.starts.items()
        if stops is None or (places[key].sequence if key in places else first) < stops.get(key, 0)
    ]
    return min(open_s, default=2**62)


def _write_slot(plan: CapturePlan, ledger: CaptureStateFile, slot: ManifestSlot) -> None:
    by_place: dict[tuple[str, str], list[CapturedFile]] = {}
    for file in ledger.of_slot(slot):
        by_place.setdefault(_place_of(file, plan), []).append(file)
    if not by_place:  # its windows had no events: that nothing is there is worth knowing too
        by_place[plan.settings.account, plan.settings.container] = []
    for place, files in by_place.items():
        store = FileStore(resolve_destination(plan.destinations, *place))
        found = repaired(plan, store, ledger, files)
        path = file_names.manifest_path(plan.hub, slot.begin_s)
        length_s = slot.end_s - slot.begin_s
        document = build_manifest(plan.namespace, plan.hub, slot.begin_s, length_s, found)
        whole = add_files_to_manifest(document, _read_manifest(store, path))
        store.put_bytes(manifest_bytes(whole), path, plan.spool)


def _place_of(file: CapturedFile, plan: CapturePlan) -> tuple[str, str]:
    """A manifest lies where its files lie, also when new ones go elsewhere by now."""
    if file.account:
        return file.account, file.container
    return plan.settings.account, plan.settings.container


def _read_manifest(store: FileStore, path: str) -> dict[str, Any] | None:
    """The manifest as it is now; None when there is none, or none that can be read."""
    if store.size(path) is None:
        return None
    with store.open(path) as opened:
        try:
            document = json.load(opened)
        except ValueError:
            return None
    return document if is_manifest(document) else None


def announce_files(
    plan: CapturePlan,
    ledger: CaptureStateFile,
    notify: NotificationTarget | None,
    send: Send | None = None,
) -> int:
    """Send what was not sent yet; how many files that were. Raises PenstockError when nobody took
    it."""
    told = 0
    while files := ledger.unannounced_files(_AT_ONCE):
        if notify is not None:
            events = [_event(plan, notify, file) for file in files]
            (send or notification_sender(notify))(plan, events)
        ledger.mark_announced([file.path for file in files])
        told += len(files)
    return told


def _event(plan: CapturePlan, notify: NotificationTarget, file: CapturedFile) -> dict[str, Any]:
    topic = f"/providers/Microsoft.EventHub/namespaces/{plan.namespace}"
    return build_file_created_event(
        file, topic=topic, hub=plan.hub, cloud=notify.format == "cloudevents"
    )


def notification_sender(notify: NotificationTarget) -> Send:
    def by_hook(plan: CapturePlan, events: Sequence[Mapping[str, Any]]) -> None:
        post_events(notify.url, events, content_type=_CONTENT[notify.format])

    def by_hub(plan: CapturePlan, events: Sequence[Mapping[str, Any]]) -> None:
        asyncio.run(_publish(plan, notify.hub, events))

    return by_hook if notify.url else by_hub


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """What the operator named is told, and nobody whom that one names."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def post_events(url: str, events: Sequence[Mapping[str, Any]], *, content_type: str) -> None:
    """Raises NotTold, which does not show the address: it may hold a key."""
    request = urllib.request.Request(  # noqa: S310  # https, or http on this machine: checked
        url,
        data=json.dumps(list(events)).encode(),
        headers={"Content-Type": content_type, "aeg-event-type": "Notification"},
        method="POST",
    )
    opener = urllib.request.build_opener(_NoRedirect())
    try:
        with opener.open(request, timeout=_HOOK_S) as answer:
            status = answer.status
    except urllib.error.HTTPError as error:
        raise NotificationFailed(f"The hook for captured files answered {error.code}.") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or type(error).__name__
        raise NotificationFailed(
            f"The hook for captured files cannot be reached: {reason}."
        ) from None
    if not 200 <= status < 300:
        raise NotificationFailed(f"The hook for captured files answered {status}.")


async def _publish(plan: CapturePlan, hub: str, events: Sequence[Mapping[str, Any]]) -> None:
    from penstock.client import EventData, EventHubProducerClient

    producer = EventHubProducerClient(
        plan.connection_string, eventhub_name=hub, ca_file=plan.ca_file, timeout_s=_HOOK_S
    )
    async with producer:
        batch = await producer.create_batch()
        for event in events:
            made = EventData(json.dumps(event), content_type="application/json")
            if not batch.try_add(made):
                await producer.send_batch(batch)
                batch = await producer.create_batch()
                if not batch.try_add(made):
                    raise NotificationFailed(
                        "An event of a captured file is larger than a publication."
                    )
        await producer.send_batch(batch)
