"""What is known of a captured file, and the two texts that tell others of it: the manifest of a
slot and the `CaptureFileCreated` event (protocol.md 9)."""

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
    """One window's file, as it lies at the destination. Sequence numbers of one without events:
    those of the place in the log where it stands, `last_sequence` one below the first."""

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
    # Under which settings it was written: they may have changed since.
    account: str = ""
    container: str = ""
    encoding: str = ""
    written_ms: int = 0  # when it was complete at the destination; 0 in records of 0.1

    @property
    def lost_count(self) -> int:
        """Events that retention had dropped before they were read."""
        return self.last_sequence - self.first_sequence + 1 - self.count


def build_manifest(
    namespace: str, hub: str, slot_s: int, interval_s: int, files: Sequence[CapturedFile]
) -> dict[str, Any]:
    """What says that a slot is complete."""
    ordered = sorted(files, key=lambda file: (partition_order(file.partition), file.named_s))
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
    """Whether it has what `with_others` looks at; anybody may have put something there."""
    if not isinstance(document, dict) or not isinstance(document.get("files"), list):
        return False
    return all(
        isinstance(file, dict)
        and all(isinstance(file.get(name), str) for name in ("path", "partitionId", "closedAt"))
        and isinstance(file.get("eventCount"), int)
        for file in document["files"]
    )


def add_files_to_manifest(
    document: dict[str, Any], there: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Of a manifest that is there already, the files that are not ours: of another run of the same
    hub, whose window closed in the same slot."""
    if there is None or there.get("namespace") != document["namespace"]:
        return document
    own = {file["path"] for file in document["files"]}
    others = [file for file in there.get("files", ()) if file["path"] not in own]
    files = sorted(
        [*document["files"], *others],
        key=lambda file: (partition_order(file["partitionId"]), file["closedAt"]),
    )
    return document | {"files": files, "eventCount": sum(file["eventCount"] for file in files)}


def manifest_bytes(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, indent=1).encode() + b"\n"


def build_file_created_event(
    file: CapturedFile, *, topic: str, hub: str, cloud: bool, kind: str = "AzureBlockBlob"
) -> dict[str, Any]:
    """In Event Grid's shape, or in that of CloudEvents 1.0. Its id is made of the file: whoever
    gets it twice knows."""
    event_id = hashlib.sha256(f"{topic}\n{hub}\n{file.url}\n{file.sha256}".encode()).hexdigest()
    created = format_time(file.named_s * 1000)
    data = {
        "fileUrl": file.url,
        "fileType": kind,
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


def partition_order(partition: str) -> tuple[int, str]:
    return (int(partition), "") if partition.isdecimal() else (-1, partition)
