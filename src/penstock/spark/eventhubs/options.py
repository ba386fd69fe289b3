"""Every option of the format `eventhubs`: name, type, default. Options are parsed once.

Every name may have the old connector's prefix `eventhubs.`; case does not matter. A name that is
not in these tables is refused with the nearest one that is: an option without effect would let a
query do something other than its author thinks. Secrets are wrapped and never shown.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from penstock.model.entities import Secret
from penstock.model.errors import ArgumentError
from penstock.spark.eventhubs.positions import (
    EARLIEST,
    LATEST,
    Position,
    has_partitions,
    parse_position,
    parse_positions,
    parse_time,
    quote_value,
)

_PREFIX = "eventhubs."
_TABLE_PREFIX = "option."  # Spark repeats the options of CREATE TABLE with this prefix
_CONNECTION_STRING_BYTES_MAX = 16 * 1024
_MB = 1024 * 1024
_INTEGER_MAX = 2**62
_AZURE = ".servicebus."
REDACTED_VARIABLE = "PENSTOCK_SPARK_REDACTED"  # set in processes whose session hides sasKey


class HubTarget(msgspec.Struct, frozen=True, kw_only=True):
    """Which hub, and how to connect to it."""

    connection_string: Secret
    eventhub_name: str
    ca_file: str | None = None
    insecure: bool = False
    transport: Literal["amqp", "websocket"] = "amqp"
    timeout_s: float = 60.0
    https_url: str | None = None


class ReadOptions(msgspec.Struct, frozen=True, kw_only=True):
    target: HubTarget
    consumer_group: str
    start: Position | None  # None: earliest for a batch, latest for a stream
    starts: dict[str, Position]
    start_must_exist: bool  # startingTimestampStrategy is `error`
    end: Position
    ends: dict[str, Position]
    max_events_per_trigger: int | None
    max_bytes_per_trigger: int
    min_events_per_trigger: int | None
    max_trigger_delay_s: float
    max_events_per_task: int | None
    min_partitions: int | None
    fail_on_data_loss: bool
    is_exclusive: bool
    prefetch: int | None
    receiver_timeout_s: float
    discover_partitions: bool
    commit_to_service: bool


class RowOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The only options on which the schema depends."""

    properties: bool = True
    system: bool = True
    hub: bool = False
    properties_format: Literal["json", "string", "variant"] = "json"
    body_format: Literal["binary", "string"] = "binary"


class WriteOptions(msgspec.Struct, frozen=True, kw_only=True):
    target: HubTarget
    partition_id: str | None
    partition_key: str | None
    batch_bytes_max: int | None
    batch_events_max: int | None
    throttling: Literal["wait", "fail"]
    retries_max: int
    retry_backoff_s: float
    idempotent: bool | None  # None: if the service is Penstock
    sink_id: str | None


# --- values: a parser takes the option's name and its text, and raises ArgumentError --------------

Parser = Callable[[str, str], Any]


def _text(option: str, text: str) -> str:
    return text


def _integer(least: int, most: int = _INTEGER_MAX) -> Parser:
    def parse(option: str, text: str) -> int:
        digits = text.strip()
        if re.fullmatch(r"-?\d{1,19}", digits, re.ASCII) and least <= int(digits) <= most:
            return int(digits)
        bounds = f"{least} to {most}" if most < _INTEGER_MAX else f"{least} or more"
        raise ArgumentError(
            f"{option} is {quote_value(text)}: a whole number, {bounds}, is expected."
        )

    return parse


def _boolean(option: str, text: str) -> bool:
    word = text.strip().lower()
    if word not in ("true", "false"):
        raise ArgumentError(f"{option} is {quote_value(text)}: true or false is expected.")
    return word == "true"


def _choice(*words: str) -> Parser:
    def parse(option: str, text: str) -> str:
        word = text.strip().lower()
        if word not in words:
            raise ArgumentError(
                f"{option} is {quote_value(text)}: {' or '.join(words)} is expected."
            )
        return word

    return parse


def parse_duration(option: str, text: str) -> float:
    """The seconds of `30s`, `15m`, `500ms`, `2h`, `1d`, `PT1M30S`, or of a number of seconds."""
    stripped = text.strip()
    simple = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)\s*([a-z]*)", stripped.lower(), re.ASCII)
    if simple and simple[2] in _UNITS:
        return float(simple[1]) * _UNITS[simple[2]]
    iso = re.fullmatch(
        r"PT?(?:(\d{1,9})D)?T?(?:(\d{1,9})H)?(?:(\d{1,9})M)?(?:(\d{1,9}(?:\.\d{1,9})?)S)?",
        stripped.upper(),
        re.ASCII,
    )
    if iso and any(iso.groups()):
        days, hours, minutes, seconds = (float(part or 0) for part in iso.groups())
        return ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    raise ArgumentError(f"{option} is {quote_value(text)}: a duration such as 30s, 15m or PT1M30S.")


_UNITS = {
    "": 1.0,
    "ms": 0.001,
    **dict.fromkeys(("s", "sec", "second", "seconds"), 1.0),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hour", "hours"), 3600.0),
    **dict.fromkeys(("d", "day", "days"), 86400.0),
}

# --- names: as users write them -------------------------------------------------------------------

_CONNECTION = ("connectionString", "connectionString.env", "connectionString.file", "endpoint")
_CREDENTIALS = ("sasKeyName", "sasKey", "sasToken")
_STARTS = ("startingPosition", "startingPositions", "startingTimestamp")
_ENDS = ("endingPosition", "endingPositions", "endingTimestamp")
# Name: field of the struct above, parser, default.
_Table = dict[str, tuple[str, Parser, Any]]
_TARGET: _Table = {
    "eventHubName": ("eventhub_name", _text, None),
    "tls.caFile": ("ca_file", _text, None),
    "tls.insecure": ("insecure", _boolean, False),
    "transport": ("transport", _choice("amqp", "amqps", "wss"), None),
    "operationTimeout": ("timeout_s", parse_duration, 60.0),
    "https.url": ("https_url", _text, None),
}
_READ: _Table = {
    "consumerGroup": ("consumer_group", _text, None),
    "startingTimestampStrategy": ("start_must_exist", _choice("error", "latest"), "error"),
    "maxEventsPerTrigger": ("max_events_per_trigger", _integer(1), None),
    "maxBytesPerTrigger": ("max_bytes_per_trigger", _integer(1), 256 * _MB),
    "minEventsPerTrigger": ("min_events_per_trigger", _integer(1), None),
    "maxTriggerDelay": ("max_trigger_delay_s", parse_duration, 15 * 60.0),
    "maxEventsPerTask": ("max_events_per_task", _integer(1), None),
    "minPartitions": ("min_partitions", _integer(1), None),
    "failOnDataLoss": ("fail_on_data_loss", _boolean, True),
    "useExclusiveReceiver": ("is_exclusive", _boolean, False),
    "prefetchCount": ("prefetch", _integer(1, 4000), None),
    "receiverTimeout": ("receiver_timeout_s", parse_duration, 60.0),
    "dynamicPartitionDiscovery": ("discover_partitions", _boolean, True),
    "commitToService": ("commit_to_service", _boolean, True),
}
_ROWS: _Table = {
    "includeProperties": ("properties", _boolean, True),
    "includeSystemProperties": ("system", _boolean, True),
    "includeEventHub": ("hub", _boolean, False),
    "propertiesFormat": ("properties_format", _choice("json", "string", "variant"), "json"),
    "bodyFormat": ("body_format", _choice("binary", "string"), "binary"),
}
_WRITE: _Table = {
    "partitionId": ("partition_id", _text, None),
    "partitionKey": ("partition_key", _text, None),
    "maxBatchSizeBytes": ("batch_bytes_max", _integer(1024, 16 * _MB), None),
    "maxBatchEvents": ("batch_events_max", _integer(1), None),
    "throttling": ("throttling", _choice("wait", "fail"), "wait"),
    "maxRetries": ("retries_max", _integer(0, 1000), 10),
    "retryBackoff": ("retry_backoff_s", parse_duration, 0.8),
    "idempotent": ("idempotent", _boolean, None),
    "sinkId": ("sink_id", _text, None),
}
NAMES = (
    *(*_CONNECTION, *_CREDENTIALS, *_STARTS, *_ENDS),
    *(*_TARGET, *_READ, *_ROWS, *_WRITE),
)
_NAMES_BY_LOWER = {name.lower(): name for name in NAMES}
# Kafka's names, and others that users may try first.
_ALIASES = {
    "startingoffsets": "startingPosition",
    "endingoffsets": "endingPosition",
    "maxoffsetspertrigger": "maxEventsPerTrigger",
    "minoffsetspertrigger": "minEventsPerTrigger",
    "maxrecordsperpartition": "maxEventsPerTask",
    "includeheaders": "includeProperties",
    "startingoffsetsbytimestampstrategy": "startingTimestampStrategy",
    "name": "eventHubName",
    # Spark hides options with these names in every session; sasKey only if it is configured to.
    "sharedaccesskey": "sasKey",
    "sharedaccesskeyname": "sasKeyName",
    "sharedaccesssignature": "sasToken",
}
_NO_AAD = "Penstock and this source sign with SAS keys"
_NO_PLUGIN = "see the query's lastProgress and `penstock group lag`"
_INDEPENDENT = "partitions are read independently here"
# Of the old connector, without effect here: accepted, with a line in the log.
_NOT_USED = {
    "slowpartitionadjustment": _INDEPENDENT,
    "maxacceptablebatchreceivetime": _INDEPENDENT,
    "useaadauth": _NO_AAD,
    "aadauthcallback": _NO_AAD,
    "aadauthcallbackparams": _NO_AAD,
    "metricplugin": _NO_PLUGIN,
    "throttlingstatusplugin": _NO_PLUGIN,
    "threadpoolsize": "no thread pool is used",
    "maxsilenttime": "heartbeats detect a connection that is lost",
    "usesimulatedclient": "use penstock.testing.broker() in tests",
    "linger": "a task sends what it has when it ends",
}
# Spark's own, which are in the same map.
_SPARK_OPTIONS = {"path", "checkpointlocation", "outputmode", "queryname", "mode", "paths"}


class EventHubsOptions:
    """The options of one query. Raises ArgumentError for an unknown name. `notes` are lines for
    the log; no text here holds a secret."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._values: dict[str, str] = {}
        self.notes: list[str] = []
        for key, value in options.items():
            self._add(key, str(value))

    def __repr__(self) -> str:
        return f"<Options {', '.join(sorted(self._values))}>"

    def text(self, name: str) -> str | None:
        return self._values.get(name)

    def read(self) -> ReadOptions:
        target = self.target()
        fields = self._parse(_READ)
        is_error = fields.pop("start_must_exist") == "error"
        fields["consumer_group"] = fields["consumer_group"] or "$Default"
        end = self._position("endingPosition", "endingTimestamp") or LATEST
        if end is EARLIEST:
            raise ArgumentError("endingPosition is earliest: such a query reads nothing.")
        return ReadOptions(
            target=target,
            start=self._position("startingPosition", "startingTimestamp"),
            starts=self._positions("startingPositions", target.eventhub_name),
            start_must_exist=is_error and self.text("startingTimestamp") is not None,
            end=end,
            ends=self._positions("endingPositions", target.eventhub_name),
            **fields,
        )

    def rows(self) -> RowOptions:
        return RowOptions(**self._parse(_ROWS))

    def write(self) -> WriteOptions:
        if self.text("partitionId") is not None and self.text("partitionKey") is not None:
            raise ArgumentError("partitionId and partitionKey exclude each other: give one.")
        return WriteOptions(target=self.target(), **self._parse(_WRITE))

    def target(self) -> HubTarget:
        # `printed + ";EntityPath=..."` often has one semicolon too many.
        parts = [part for part in self._connection_string().split(";") if part.strip()]
        fields = self._parse(_TARGET)
        transport = fields.pop("transport")
        if transport is not None:
            emulator = "usedevelopmentemulator"
            parts = [p for p in parts if p.partition("=")[0].strip().casefold() != emulator]
            parts += ["UseDevelopmentEmulator=true"] if transport == "amqp" else []
        connection_string = ";".join(parts)
        from penstock.model.connection_string import parse_connection_string

        endpoint = parse_connection_string(connection_string)
        hub, ca_file = fields.pop("eventhub_name") or endpoint.hub, fields.pop("ca_file")
        if not hub:
            raise ArgumentError(
                "No hub is named: give the option eventHubName, or EntityPath in the connection "
                "string."
            )
        if ca_file is not None and not Path(ca_file).is_file():
            raise ArgumentError(f"tls.caFile is {quote_value(ca_file)}: there is no such file.")
        if ca_file is None and endpoint.tls and not fields["insecure"]:
            ca_file = _find_ca_file(connection_string, endpoint.host)
        return HubTarget(
            connection_string=Secret(connection_string),
            eventhub_name=hub,
            ca_file=ca_file,
            transport="websocket" if transport == "wss" else "amqp",
            **fields,
        )

    def _add(self, key: str, value: str) -> None:
        plain = key.lower().removeprefix(_PREFIX)
        if plain.startswith(_TABLE_PREFIX):
            raise ArgumentError(
                "Spark does not hand the options of a table to a source in Python: use CREATE "
                "TEMPORARY VIEW ... USING eventhubs OPTIONS (...) instead of CREATE TABLE."
            )
        if plain in _SPARK_OPTIONS and not key.lower().startswith(_PREFIX):
            return
        if plain in _NOT_USED:
            if (plain, value.lower()) != ("slowpartitionadjustment", "false"):
                self.notes.append(f"the option {key} is not used: {_NOT_USED[plain]}")
            return
        if plain == "saskey" and REDACTED_VARIABLE not in os.environ:
            self.notes.append(
                f"the option {key} shows in the plans of this session, unless "
                "spark.redaction.regex names it; give the key as sharedAccessKey, which Spark hides"
            )
        name = _NAMES_BY_LOWER.get(plain) or _ALIASES.get(plain)
        if name is None:
            raise _unknown_option_error(key, plain)
        if plain in ("startingoffsets", "endingoffsets") and has_partitions(value):
            name += "s"  # Kafka has one option for both
        if self._values.setdefault(name, value) != value:
            raise ArgumentError(
                f"The option {name} is given twice with different values (once as {key!r}, with or "
                "without the prefix 'eventhubs.' or under another name): give it once."
            )

    def _parse(self, table: _Table) -> dict[str, Any]:
        return {
            field: parse(name, self._values[name]) if name in self._values else default
            for name, (field, parse, default) in table.items()
        }

    def _position(self, name: str, time_name: str) -> Position | None:
        text, time = self.text(name), self.text(time_name)
        if time is not None and text is not None:
            raise ArgumentError(f"{name} and {time_name} exclude each other.")
        if time is not None:
            return parse_time(time_name, time)
        return None if text is None else parse_position(name, text)

    def _positions(self, name: str, hub: str) -> dict[str, Position]:
        text = self.text(name)
        return {} if text is None else parse_positions(name, text, hub)

    def _connection_string(self) -> str:
        names = [name for name in _CONNECTION if self.text(name) is not None]
        if len(names) > 1:
            raise ArgumentError(f"The options {' and '.join(names)} exclude each other: give one.")
        if (endpoint := self.text("endpoint")) is not None:
            return self._compose_connection_string(endpoint)
        if variable := self.text("connectionString.env"):
            value = os.environ.get(variable)
            if not value:
                raise ArgumentError(
                    f"connectionString.env names {quote_value(variable)}, which is not set in the "
                    "environment that Spark was started with: set it before the session is created."
                )
            return value
        if file := self.text("connectionString.file"):
            return _read_connection_string(Path(file))
        text = self.text("connectionString") or os.environ.get("PENSTOCK_CONNECTION_STRING")
        if not text:
            raise ArgumentError(
                "No connection is given: set the option connectionString, connectionString.env, "
                "connectionString.file or endpoint, or PENSTOCK_CONNECTION_STRING in the driver's "
                "environment before the session is created."
            )
        return text

    def _compose_connection_string(self, endpoint: str) -> str:
        url = endpoint if "://" in endpoint else f"sb://{endpoint}"
        key_name, key, token = (self.text(name) for name in _CREDENTIALS)
        if token is not None and key is None:
            credentials = f"SharedAccessSignature={token}"
        elif token is None and key is not None and key_name is not None:
            credentials = f"SharedAccessKeyName={key_name};SharedAccessKey={key}"
        else:
            raise ArgumentError("With endpoint give sasKeyName and sasKey, or sasToken alone.")
        if any(";" in part for part in (url, token or "", key or "", key_name or "")):
            raise ArgumentError("endpoint, sasKeyName, sasKey and sasToken may not contain a ';'.")
        return f"Endpoint={url};{credentials}"


def _unknown_option_error(key: str, plain: str) -> ArgumentError:
    candidates = _NAMES_BY_LOWER | {name: name for name in _NOT_USED}
    near = difflib.get_close_matches(plain, candidates, n=1, cutoff=0.5)
    if near:
        hint = f"did you mean {candidates[near[0]]}?"
    else:
        far = difflib.get_close_matches(plain, _NAMES_BY_LOWER, n=1, cutoff=0.0)[0]
        hint = f"the nearest is {_NAMES_BY_LOWER[far]}; docs/spark.md lists them all."
    # The key alone: its value may be a secret whose name was misspelled.
    return ArgumentError(f"The format eventhubs has no option {quote_value(key)}: {hint}")


def _find_ca_file(connection_string: str, host: str) -> str | None:
    """The CA file of PENSTOCK_CA_FILE, or of the service on the local data directory. Azure's own
    hosts are signed by authorities that every machine trusts."""
    from penstock.checkpoints.service_client import locate_service

    file = os.environ.get("PENSTOCK_CA_FILE")
    if file and Path(file).is_file() and _AZURE not in host.casefold():
        return file
    return locate_service(connection_string).ca_file


def _read_connection_string(file: Path) -> str:
    try:
        with file.open(encoding="utf-8") as opened:
            text = opened.read(_CONNECTION_STRING_BYTES_MAX + 1)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8"
        raise ArgumentError(
            f"connectionString.file is {quote_value(str(file))}, which cannot be read: {reason}."
        ) from None
    if len(text) > _CONNECTION_STRING_BYTES_MAX:
        raise ArgumentError(f"connectionString.file is {quote_value(str(file))}: it is too long.")
    return text.strip()
