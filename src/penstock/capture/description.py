"""Check a captureDescription and fill in defaults (protocol.md 7.3, 9).

Pure: no destination is opened.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeVar

from penstock.model import names
from penstock.model.capture import CaptureDescription
from penstock.model.errors import ArgumentError, ArgumentOutOfRange

INTERVAL_S = (60, 900)
SIZE_BYTES = (10_485_760, 524_288_000)
INTERVAL_S_DEFAULT = 300
SIZE_BYTES_DEFAULT = 314_572_800
ENCODINGS = ("Avro", "AvroDeflate", "Parquet")  # Azure has the first two
BLOCK_BLOB = "EventHubArchive.AzureBlockBlob"
DESTINATIONS = (BLOCK_BLOB, "EventHubArchive.AzureDataLake")
TOKENS = (
    "Namespace", "EventHub", "PartitionId", "Year", "Month", "Day", "Hour", "Minute", "Second",
)  # fmt: skip
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
T = TypeVar("T")
_TYPE_NAMES: dict[type, str] = {bool: "a boolean", int: "an integer", dict: "an object"}


def parse_description(given: Description) -> CaptureDescription:
    """Raises ArgumentError, ArgumentOutOfRange."""
    checked = check_description(given)
    properties = checked.get("destination", {}).get("properties", {})
    account = properties.get("storageAccountResourceId") or properties.get("dataLakeAccountName")
    container = properties.get("blobContainer") or properties.get("dataLakeFolderPath", "")
    return CaptureDescription(
        encoding=checked["encoding"],
        interval_s=checked["intervalInSeconds"],
        size_bytes=checked["sizeLimitInBytes"],
        skip_empty=checked["skipEmptyArchives"],
        account=account or "",
        container=container.strip("/"),
        name_format=properties.get("archiveNameFormat", NAME_FORMAT_DEFAULT),
    )


def check_description(given: Description) -> dict[str, Any]:
    """Return the description with its defaults filled in. Raises ArgumentError,
    ArgumentOutOfRange."""
    where = "captureDescription"
    enabled = _read(where, given, "enabled", False)
    encoding = given.get("encoding") or ENCODINGS[0]
    description: dict[str, Any] = {
        "enabled": enabled,
        "encoding": _check_choice(f"{where}.encoding", encoding, ENCODINGS),
        "intervalInSeconds": _read_number(
            given, "intervalInSeconds", INTERVAL_S_DEFAULT, INTERVAL_S
        ),
        "sizeLimitInBytes": _read_number(given, "sizeLimitInBytes", SIZE_BYTES_DEFAULT, SIZE_BYTES),
        "skipEmptyArchives": _read(where, given, "skipEmptyArchives", False),
    }
    if given.get("destination") is not None:
        description["destination"] = _check_destination(given)
    elif enabled:
        raise ArgumentError("Capture cannot be enabled without captureDescription.destination.")
    return description


def _check_destination(given: Description) -> dict[str, Any]:
    where = "captureDescription.destination"
    destination: dict[str, Any] = _read("captureDescription", given, "destination", {})
    name = _check_choice(f"{where}.name", destination.get("name") or BLOCK_BLOB, DESTINATIONS)
    properties: dict[str, Any] = _read(where, destination, "properties", {})
    texts = {
        key: _check_text(f"{where}.properties.{key}", value)
        for key in _DESTINATION_TEXTS
        if (value := properties.get(key)) is not None
    }
    if name == BLOCK_BLOB:
        for needed in ("storageAccountResourceId", "blobContainer"):
            if not texts.get(needed):
                raise ArgumentError(f"{where}.properties.{needed} is missing.")
    texts["archiveNameFormat"] = check_name_format(
        texts.get("archiveNameFormat") or NAME_FORMAT_DEFAULT
    )
    checked_destination: dict[str, Any] = {"name": name, "properties": texts}
    if destination.get("identity") is not None:
        checked_destination["identity"] = _read(where, destination, "identity", {})
    return checked_destination


def check_name_format(text: str) -> str:
    """Require all nine tokens, in any order, and a path that stays in the container. Raises
    ArgumentError."""
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
    if unknown or _PLAIN.fullmatch(_BRACES.sub("", text)) is None:
        raise ArgumentError(
            f"archiveNameFormat '{names.quote_text(text)}' is invalid: beside the nine tokens only "
            "letters, digits, space and . _ = / - are allowed."
        )
    segments = text.split("/")
    if text.startswith("/") or "." in segments or ".." in segments or "" in segments:
        raise ArgumentError(
            f"archiveNameFormat '{names.quote_text(text)}' is invalid: it must be a relative "
            "path without empty, '.' or '..' segments."
        )
    return text


def _read(where: str, given: Description, key: str, default: T) -> T:
    """The value, which must have the default's type."""
    value = given.get(key)
    if value is None:
        return default
    if type(value) is not type(default):
        raise ArgumentError(f"{where}.{key} is not {_TYPE_NAMES[type(default)]}.")
    return value


def _read_number(given: Description, key: str, default: int, bounds: tuple[int, int]) -> int:
    value = _read("captureDescription", given, key, default)
    least, most = bounds
    if not least <= value <= most:
        raise ArgumentOutOfRange(
            f"captureDescription.{key} is {value}: {least} to {most} are allowed."
        )
    return value


def _check_choice(where: str, value: object, allowed: tuple[str, ...]) -> str:
    if not isinstance(value, str) or value not in allowed:
        raise ArgumentError(
            f"{where} is '{names.quote_text(str(value))}': {' and '.join(allowed)} are allowed."
        )
    return value


def _check_text(where: str, value: object) -> str:
    if not isinstance(value, str) or len(value) > _TEXT_MAX or not value.isprintable():
        raise ArgumentError(f"{where} is not a text of at most {_TEXT_MAX} printable characters.")
    return value
