"""A hub's captureDescription (protocol.md 7.3, 9): checked, completed, ready to be kept.

Pure. Capture itself reads what is kept here; nothing below opens a destination.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from penstock.capture.runs import FileLocation
from penstock.model import names
from penstock.model.errors import ArgumentError, ArgumentOutOfRange

INTERVAL_S = (60, 900)
SIZE_BYTES = (10_485_760, 524_288_000)
INTERVAL_S_DEFAULT = 300
SIZE_BYTES_DEFAULT = 314_572_800
ENCODINGS = ("Avro", "AvroDeflate", "Parquet")  # Azure knows the first two
BLOCK_BLOB = "EventHubArchive.AzureBlockBlob"
DESTINATIONS = (BLOCK_BLOB, "EventHubArchive.AzureDataLake")
TOKENS = (
    "Namespace",
    "EventHub",
    "PartitionId",
    "Year",
    "Month",
    "Day",
    "Hour",
    "Minute",
    "Second",
)
NAME_FORMAT_DEFAULT = "/".join(f"{{{token}}}" for token in TOKENS)
_NAME_FORMAT_MAX = 512
_TEXT_MAX = 1024
_DESTINATION_TEXTS = (
    "storageAccountResourceId",
    "blobContainer",
    "archiveNameFormat",
    "dataLakeSubscriptionId",
    "dataLakeAccountName",
    "dataLakeFolderPath",
)
_BRACES = re.compile(r"\{([^{}]*)\}")
_PLAIN = re.compile(r"[A-Za-z0-9 ._=/-]*")

Description = Mapping[str, Any]


class CaptureDescription(msgspec.Struct, frozen=True, kw_only=True):
    """A description that is switched on, as Capture itself wants it."""

    encoding: str
    interval_s: int
    size_bytes: int
    skip_empty: bool
    account: str  # storageAccountResourceId: which destination
    container: str
    name_format: str

    @staticmethod
    def of(given: Description) -> CaptureDescription:
        """Raises ArgumentError, ArgumentOutOfRange."""
        whole = check_description(given)
        properties = whole.get("destination", {}).get("properties", {})
        account = properties.get("storageAccountResourceId") or properties.get(
            "dataLakeAccountName", ""
        )
        container = properties.get("blobContainer") or properties.get("dataLakeFolderPath", "")
        return CaptureDescription(
            encoding=whole["encoding"],
            interval_s=whole["intervalInSeconds"],
            size_bytes=whole["sizeLimitInBytes"],
            skip_empty=whole["skipEmptyArchives"],
            account=account,
            container=container.strip("/"),
            name_format=properties.get("archiveNameFormat", NAME_FORMAT_DEFAULT),
        )

    @property
    def place(self) -> FileLocation:
        return FileLocation(
            account=self.account, container=self.container, name_format=self.name_format
        )

    @property
    def kind(self) -> str:
        """What its files are: avro or parquet."""
        return "parquet" if self.encoding == "Parquet" else "avro"


def check_description(given: Description) -> dict[str, Any]:
    """The description with its defaults filled in; ArgumentError, ArgumentOutOfRange."""
    enabled = _boolean(given, "enabled", default=False)
    encoding = _one_of(
        "captureDescription.encoding", given.get("encoding") or ENCODINGS[0], ENCODINGS
    )
    interval_s = _check_number(given, "intervalInSeconds", INTERVAL_S, INTERVAL_S_DEFAULT)
    size_bytes = _check_number(given, "sizeLimitInBytes", SIZE_BYTES, SIZE_BYTES_DEFAULT)
    description: dict[str, Any] = {
        "enabled": enabled,
        "encoding": encoding,
        "intervalInSeconds": interval_s,
        "sizeLimitInBytes": size_bytes,
        "skipEmptyArchives": _boolean(given, "skipEmptyArchives", default=False),
    }
    destination = given.get("destination")
    if destination is not None:
        description["destination"] = _destination(destination)
    elif enabled:
        raise ArgumentError("Capture cannot be enabled without captureDescription.destination.")
    return description


def _destination(given: object) -> dict[str, Any]:
    where = "captureDescription.destination"
    destination = _object(where, given)
    name = _one_of(f"{where}.name", destination.get("name") or BLOCK_BLOB, DESTINATIONS)
    properties = _object(f"{where}.properties", destination.get("properties") or {})
    kept = {
        key: _check_text(f"{where}.properties.{key}", value)
        for key in _DESTINATION_TEXTS
        if (value := properties.get(key)) is not None
    }
    if name == BLOCK_BLOB:
        for needed in ("storageAccountResourceId", "blobContainer"):
            if not kept.get(needed):
                raise ArgumentError(f"{where}.properties.{needed} is missing.")
    kept["archiveNameFormat"] = check_name_format(
        kept.get("archiveNameFormat") or NAME_FORMAT_DEFAULT
    )
    checked_destination: dict[str, Any] = {"name": name, "properties": kept}
    if destination.get("identity") is not None:
        checked_destination["identity"] = _object(f"{where}.identity", destination["identity"])
    return checked_destination


def check_name_format(text: str) -> str:
    """All nine tokens, in any order, and nothing that leads out of the container."""
    if len(text) > _NAME_FORMAT_MAX:
        raise ArgumentError(
            f"archiveNameFormat has {len(text)} characters: at most {_NAME_FORMAT_MAX} are allowed."
        )
    tokens = _BRACES.findall(text)
    missing = [token for token in TOKENS if token not in tokens]
    if missing:
        raise ArgumentError(
            f"archiveNameFormat '{names.quote_text(text)}' lacks "
            f"{', '.join(f'{{{token}}}' for token in missing)}: all nine tokens are needed."
        )
    unknown = [token for token in tokens if token not in TOKENS]
    rest = _BRACES.sub("", text)
    if unknown or _PLAIN.fullmatch(rest) is None:
        raise ArgumentError(
            f"archiveNameFormat '{names.quote_text(text)}' is invalid: beside the nine tokens only "
            "letters, digits, space and . _ = / - are allowed."
        )
    segments = text.split("/")
    if text.startswith("/") or "." in segments or ".." in segments or "" in segments:
        raise ArgumentError(
            f"archiveNameFormat '{names.quote_text(text)}' is invalid: it is relative, and between "
            "slashes stands a name, not '.' or '..'."
        )
    return text


def _boolean(given: Description, key: str, *, default: bool) -> bool:
    value = given.get(key)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise ArgumentError(f"captureDescription.{key} is no boolean.")
    return value


def _check_number(given: Description, key: str, bounds: tuple[int, int], default: int) -> int:
    value = given.get(key)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int):
        raise ArgumentError(f"captureDescription.{key} is no whole number.")
    least, most = bounds
    if not least <= value <= most:
        raise ArgumentOutOfRange(
            f"captureDescription.{key} is {value}: {least} to {most} are allowed."
        )
    return value


def _one_of(where: str, value: object, allowed: tuple[str, ...]) -> str:
    if not isinstance(value, str) or value not in allowed:
        raise ArgumentError(
            f"{where} is '{names.quote_text(str(value))}': {' and '.join(allowed)} are allowed."
        )
    return value


def _object(where: str, value: object) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ArgumentError(f"{where} is no object.")
    return value


def _check_text(where: str, value: object) -> str:
    if not isinstance(value, str) or len(value) > _TEXT_MAX or not value.isprintable():
        raise ArgumentError(f"{where} is no text of at most {_TEXT_MAX} printable characters.")
    return value
