"""CapturedFile, slot manifest and CaptureFileCreated event (protocol.md 9)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from penstock.capture import file_names

EVENT_TYPE = "Microsoft.EventHub.CaptureFileCreated"


class CapturedFile(msgspec.Struct, frozen=True, kw_only=True):
    """One window's file at the destination. Without events, `first_sequence` is that of the next
    event and `last_sequence` one less. Field names are stored names."""

    path: str
    url: str
    partition: str
    window: int
    first_sequence: int
    last_sequence: int
    count: int
    bytes: int
    sha256: str
    named_s: int
    first_ms: int = 0
    last_ms: int = 0
    # The settings that it was written with: they may have changed since.
    account: str = ""
    container: str = ""
    encoding: str = ""
    written_ms: int = 0  # when it was complete at the destination; 0: written by version 0.1

    @property
    def lost_count(self) -> int:
        """Events that retention removed before they were read."""
        return self.last_sequence - self.first_sequence + 1 - self.count


def build_manifest(
    namespace: str, hub: str, slot_s: int, interval_s: int, files: Sequence[CapturedFile]
) -> dict[str, Any]:
    """The list of a slot's files: where it exists, the slot is complete."""
    ordered = sorted(
        files, key=lambda file: (file_names.partition_order(file.partition), file.named_s)
    )
    return {
        "version": 1,
        "namespace": namespace,
        "eventHub": hub,
        "slot": file_names.slot_name(slot_s),
        "from": format_time(slot_s * 1000),
        "to": format_time((slot_s + interval_s) * 1000),
        "eventCount": sum(file.count for file in ordered),
        "files": [
            {
                "path": file.path,
                "partitionId": file.partition,
                "closedAt": format_time(file.named_s * 1000),
                "firstSequenceNumber": file.first_sequence if file.count else -1,
                "lastSequenceNumber": file.last_sequence if file.count else -1,
                "eventCount": file.count,
                "sizeInBytes": file.bytes,
                "sha256": file.sha256,
            }
            for file in ordered
        ],
    }


def is_manifest(document: object) -> bool:
    """Whether it has what `add_files_to_manifest` reads; the stored file may be anything."""
    if not isinstance(document, dict) or not isinstance(document.get("files"), list):
        return False
    return all(
        isinstance(file, dict)
        and all(isinstance(file.get(name), str) for name in ("path", "partitionId", "closedAt"))
        and isinstance(file.get("eventCount"), int)
        for file in document["files"]
    )


def add_files_to_manifest(
    document: dict[str, Any], stored: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Add the files of the stored manifest that another run of the hub wrote in the same slot."""
    if stored is None or stored.get("namespace") != document["namespace"]:
        return document
    own = {file["path"] for file in document["files"]}
    others = [file for file in stored.get("files", ()) if file["path"] not in own]
    files = sorted(
        [*document["files"], *others],
        key=lambda file: (file_names.partition_order(file["partitionId"]), file["closedAt"]),
    )
    return document | {"files": files, "eventCount": sum(file["eventCount"] for file in files)}


def manifest_bytes(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, indent=1).encode() + b"\n"


def build_file_created_event(
    file: CapturedFile, *, topic: str, hub: str, cloud: bool
) -> dict[str, Any]:
    """In the format of Event Grid or of CloudEvents 1.0. Its id follows from the file, so that a
    receiver recognizes a duplicate."""
    event_id = hashlib.sha256(f"{topic}\n{hub}\n{file.url}\n{file.sha256}".encode()).hexdigest()
    created = format_time(file.named_s * 1000)
    data = {
        "fileUrl": file.url,
        "fileType": "AzureBlockBlob",
        "partitionId": file.partition,
        "sizeInBytes": file.bytes,
        "eventCount": file.count,
        "firstSequenceNumber": file.first_sequence if file.count else -1,
        "lastSequenceNumber": file.last_sequence if file.count else -1,
        "firstEnqueueTime": format_time(file.first_ms) if file.count else None,
        "lastEnqueueTime": format_time(file.last_ms) if file.count else None,
    }
    if cloud:
        return {
            "specversion": "1.0",
            "id": event_id[:32],
            "source": topic,
            "type": EVENT_TYPE,
            "subject": f"eventhubs/{hub}",
            "time": created,
            "datacontenttype": "application/json",
            "data": data,
        }
    return {
        "topic": topic,
        "subject": f"eventhubs/{hub}",
        "eventType": EVENT_TYPE,
        "id": event_id[:32],
        "eventTime": created,
        "data": data,
        "dataVersion": "",
        "metadataVersion": "1",
    }


def format_time(milliseconds: int) -> str:
    moment = datetime.fromtimestamp(milliseconds / 1000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
