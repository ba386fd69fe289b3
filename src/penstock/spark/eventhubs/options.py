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
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

from penstock.formats.quantities import parse_seconds
from penstock.model.connection_string import parse_connection_string
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


def _choice(*words: str) -> Parser:
    def parse(option: str, text: str) -> str:
        word = text.strip().lower()
        if word not in words:
            raise ArgumentError(
                f"{option} is {quote_value(text)}: {' or '.join(words)} is expected."
            )
        return word

    return parse


def _boolean(option: str, text: str) -> bool:
    return bool(_choice("true", "false")(option, text) == "true")


def parse_duration(option: str, text: str) -> float:
    """The seconds of `30s`, `15m`, `500ms`, `2 hours`, `PT1M30S`, or of a number of seconds."""
    short = re.sub(r"(sec|minute|hour|day)(ond)?s?\b", lambda unit: unit[1][0], text.lower())
    short = short.strip()
    if short.startswith("p"):  # ISO 8601
        short = short.replace("p", "").replace("t", "")
    try:
        return parse_seconds(short)
    except ArgumentError:
        raise ArgumentError(
            f"{option} is {quote_value(text)}: a duration such as 30s, 15m or PT1M30S."
        ) from None


# --- options, by what they are for ----------------------------------------------------------------


def _option(name: str, parse: Parser, default: Any = None) -> Any:
    """A field that an option sets. `name` is as users write it."""
    return field(default=default, metadata={"name": name, "parse": parse})


@dataclass(frozen=True, kw_only=True)
class HubTarget:
    """Which hub, and how to connect to it."""

    connection_string: Secret
    eventhub_name: str
    transport: Literal["amqp", "websocket"]
    ca_file: str | None = _option("tls.caFile", _text)
    insecure: bool = _option("tls.insecure", _boolean, False)
    timeout_s: float = _option("operationTimeout", parse_duration, 60.0)
    https_url: str | None = _option("https.url", _text)


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    target: HubTarget
    start: Position | None  # None: earliest for a batch, latest for a stream
    starts: dict[str, Position]
    start_must_exist: bool  # startingTimestampStrategy is `error`
    end: Position
    ends: dict[str, Position]
    consumer_group: str = _option("consumerGroup", lambda _, text: text or "$Default", "$Default")
    max_events_per_trigger: int | None = _option("maxEventsPerTrigger", _integer(1))
    max_bytes_per_trigger: int = _option("maxBytesPerTrigger", _integer(1), 256 * _MB)
    min_events_per_trigger: int | None = _option("minEventsPerTrigger", _integer(1))
    max_trigger_delay_s: float = _option("maxTriggerDelay", parse_duration, 15 * 60.0)
    max_events_per_task: int | None = _option("maxEventsPerTask", _integer(1))
    min_partitions: int | None = _option("minPartitions", _integer(1))
    fail_on_data_loss: bool = _option("failOnDataLoss", _boolean, True)
    is_exclusive: bool = _option("useExclusiveReceiver", _boolean, False)
    prefetch: int | None = _option("prefetchCount", _integer(1, 4000))
    receiver_timeout_s: float = _option("receiverTimeout", parse_duration, 60.0)
    discover_partitions: bool = _option("dynamicPartitionDiscovery", _boolean, True)
    commit_to_service: bool = _option("commitToService", _boolean, True)


@dataclass(frozen=True, kw_only=True)
class RowOptions:
    """The only options on which the schema depends."""

    properties: bool = _option("includeProperties", _boolean, True)
    system: bool = _option("includeSystemProperties", _boolean, True)
    hub: bool = _option("includeEventHub", _boolean, False)
    properties_format: str = _option(
        "propertiesFormat", _choice("json", "string", "variant"), "json"
    )
    body_format: str = _option("bodyFormat", _choice("binary", "string"), "binary")


@dataclass(frozen=True, kw_only=True)
class WriteOptions:
    target: HubTarget
    partition_id: str | None = _option("partitionId", _text)
    partition_key: str | None = _option("partitionKey", _text)
    batch_bytes_max: int | None = _option("maxBatchSizeBytes", _integer(1024, 16 * _MB))
    batch_events_max: int | None = _option("maxBatchEvents", _integer(1))
    throttling: str = _option("throttling", _choice("wait", "fail"), "wait")
    retries_max: int = _option("maxRetries", _integer(0, 1000), 10)
    retry_backoff_s: float = _option("retryBackoff", parse_duration, 0.8)
    # None: if the service is Penstock.
    idempotent: bool | None = _option("idempotent", _boolean)
    sink_id: str | None = _option("sinkId", _text)


# Those without a field of their own.
_CONNECTION = ("connectionString", "connectionString.env", "connectionString.file", "endpoint")
_CREDENTIALS = ("sasKeyName", "sasKey", "sasToken")
_STARTS = ("startingPosition", "startingPositions", "startingTimestamp")
_ENDS = ("endingPosition", "endingPositions", "endingTimestamp")
_COMPOSED = ("eventHubName", "transport", "startingTimestampStrategy")
_GROUPS = (HubTarget, ReadOptions, RowOptions, WriteOptions)
NAMES = (
    *(*_CONNECTION, *_CREDENTIALS, *_STARTS, *_ENDS, *_COMPOSED),
    *(each.metadata["name"] for group in _GROUPS for each in fields(group) if each.metadata),
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
        end = self._position("endingPosition", "endingTimestamp") or LATEST
        if end is EARLIEST:
            raise ArgumentError("endingPosition is earliest: such a query reads nothing.")
        strategy = self._choice("startingTimestampStrategy", "error", "latest")
        return ReadOptions(
            target=target,
            start=self._position("startingPosition", "startingTimestamp"),
            starts=self._positions("startingPositions", target.eventhub_name),
            start_must_exist=strategy != "latest" and self.text("startingTimestamp") is not None,
            end=end,
            ends=self._positions("endingPositions", target.eventhub_name),
            **self._parse(ReadOptions),
        )

    def rows(self) -> RowOptions:
        return RowOptions(**self._parse(RowOptions))

    def write(self) -> WriteOptions:
        if self.text("partitionId") is not None and self.text("partitionKey") is not None:
            raise ArgumentError("partitionId and partitionKey exclude each other: give one.")
        return WriteOptions(target=self.target(), **self._parse(WriteOptions))

    def target(self) -> HubTarget:
        # `printed + ";EntityPath=..."` often has one semicolon too many.
        parts = [part for part in self._connection_string().split(";") if part.strip()]
        transport = self._choice("transport", "amqp", "amqps", "wss")
        if transport is not None:
            emulator = "usedevelopmentemulator"
            parts = [p for p in parts if p.partition("=")[0].strip().casefold() != emulator]
            parts += ["UseDevelopmentEmulator=true"] if transport == "amqp" else []
        connection_string = ";".join(parts)
        endpoint = parse_connection_string(connection_string)
        hub = self.text("eventHubName") or endpoint.hub
        if not hub:
            raise ArgumentError(
                "No hub is named: give the option eventHubName, or EntityPath in the connection "
                "string."
            )
        target = HubTarget(
            connection_string=Secret(connection_string),
            eventhub_name=hub,
            transport="websocket" if transport == "wss" else "amqp",
            **self._parse(HubTarget),
        )
        if target.ca_file is not None and not Path(target.ca_file).is_file():
            raise ArgumentError(
                f"tls.caFile is {quote_value(target.ca_file)}: there is no such file."
            )
        if target.ca_file is None and endpoint.tls and not target.insecure:
            return replace(target, ca_file=_find_ca_file(connection_string, endpoint.host))
        return target

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

    def _parse(self, group: type[Any]) -> dict[str, Any]:
        """The fields that options set; others have their defaults."""
        return {
            each.name: each.metadata["parse"](name, self._values[name])
            for each in fields(group)
            if (name := each.metadata.get("name")) in self._values
        }

    def _choice(self, name: str, *words: str) -> Any:
        text = self.text(name)
        return None if text is None else _choice(*words)(name, text)

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
        hint = f"the nearest is {_NAMES_BY_LOWER[far]}; docs/reference/spark.md lists them all."
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
