"""CapturedFile, slot manifest and CaptureFileCreated event (protocol.md 9)."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import msgspec

from penstock.capture.file_names import partition_order, slot_name
from penstock.formats.quantities import format_time

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


class ManifestFile(msgspec.Struct, frozen=True, rename="camel"):
    """Without events the sequence numbers are -1."""

    path: str
    partition_id: str
    closed_at: str
    first_sequence_number: int
    last_sequence_number: int
    event_count: int
    size_in_bytes: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The list of a slot's files: where it exists, the slot is complete."""

    version: int = 1
    namespace: str
    event_hub: str
    slot: str
    start: str = msgspec.field(name="from")
    end: str = msgspec.field(name="to")
    event_count: int
    files: list[ManifestFile]

    def encode(self) -> bytes:
        return msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n"


def decode_manifest(content: bytes) -> Manifest:
    """Raises msgspec.MsgspecError: the stored file may be anything."""
    return msgspec.json.decode(content, type=Manifest)


def build_manifest(
    namespace: str,
    hub: str,
    slot_s: int,
    interval_s: int,
    files: Sequence[CapturedFile],
    stored: Manifest | None = None,
) -> Manifest:
    """With the files of the stored manifest that another run of the hub wrote in the same slot."""
    entries = [
        ManifestFile(
            path=file.path,
            partition_id=file.partition,
            closed_at=format_time(file.named_s * 1000),
            first_sequence_number=file.first_sequence if file.count else -1,
            last_sequence_number=file.last_sequence if file.count else -1,
            event_count=file.count,
            size_in_bytes=file.bytes,
            sha256=file.sha256,
        )
        for file in files
    ]
    if stored is not None and stored.namespace == namespace:
        own = {file.path for file in files}
        entries += [entry for entry in stored.files if entry.path not in own]
    entries.sort(key=lambda entry: (partition_order(entry.partition_id), entry.closed_at))
    return Manifest(
        namespace=namespace,
        event_hub=hub,
        slot=slot_name(slot_s),
        start=format_time(slot_s * 1000),
        end=format_time((slot_s + interval_s) * 1000),
        event_count=sum(entry.event_count for entry in entries),
        files=entries,
    )


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
    common = {"subject": f"eventhubs/{hub}", "id": event_id[:32], "data": data}
    if cloud:
        return common | {
            "specversion": "1.0",
            "source": topic,
            "type": EVENT_TYPE,
            "time": created,
            "datacontenttype": "application/json",
        }
    return common | {
        "topic": topic,
        "eventType": EVENT_TYPE,
        "eventTime": created,
        "dataVersion": "",
        "metadataVersion": "1",
    }
