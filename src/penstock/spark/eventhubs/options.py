"""Options of the format `eventhubs`: one table, parsed once, secrets wrapped.

Every name may have the old connector's prefix `eventhubs.`; case does not matter. What is not in
the table is refused with the nearest name that is: an option that does nothing is a query that
does something else than its author thinks.
"""

from __future__ import annotations

import difflib
import logging
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec

from penstock.model.entities import Secret
from penstock.model.errors import ArgumentError
from penstock.spark.eventhubs.positions import (
    EARLIEST,
    LATEST,
    Position,
    is_by_partition,
    parse_position,
    parse_positions,
    parse_time,
)

_log = logging.getLogger("penstock.spark")
_PREFIX = "eventhubs."
_OF_TABLE = "option."  # how Spark repeats the options of CREATE TABLE among its properties
_CONNECTION_STRING_BYTES_MAX = 16 * 1024
_PREFETCH_MAX = 4000
_MB = 1024 * 1024
_SHOWN_MAX = 80
_AZURE = ".servicebus."
REDACTED_VARIABLE = "PENSTOCK_SPARK_REDACTED"  # of processes whose session hides sasKey

# As users write them. The readers of values are below, by name.
NAMES = (
    "connectionString",
    "connectionString.env",
    "connectionString.file",
    "eventHubName",
    "endpoint",
    "sasKeyName",
    "sasKey",
    "sasToken",
    "tls.caFile",
    "tls.insecure",
    "transport",
    "consumerGroup",
    "startingPosition",
    "startingPositions",
    "startingTimestamp",
    "startingTimestampStrategy",
    "endingPosition",
    "endingPositions",
    "endingTimestamp",
    "maxEventsPerTrigger",
    "maxBytesPerTrigger",
    "minEventsPerTrigger",
    "maxTriggerDelay",
    "maxEventsPerTask",
    "minPartitions",
    "failOnDataLoss",
    "useExclusiveReceiver",
    "prefetchCount",
    "receiverTimeout",
    "operationTimeout",
    "dynamicPartitionDiscovery",
    "includeProperties",
    "includeSystemProperties",
    "includeEventHub",
    "propertiesFormat",
    "bodyFormat",
    "commitToService",
    "https.url",
    "partitionId",
    "partitionKey",
    "maxBatchSizeBytes",
    "maxBatchEvents",
    "linger",
    "throttling",
    "maxRetries",
    "retryBackoff",
    "idempotent",
    "sinkId",
)
# Kafka's names, and others that users may try first.
ALIASES = {
    "startingoffsets": "startingPosition",
    "endingoffsets": "endingPosition",
    "maxoffsetspertrigger": "maxEventsPerTrigger",
    "minoffsetspertrigger": "minEventsPerTrigger",
    "maxrecordsperpartition": "maxEventsPerTask",
    "includeheaders": "includeProperties",
    "startingoffsetsbytimestampstrategy": "startingTimestampStrategy",
    "name": "eventHubName",
    # Spark hides options by these names in every session; sasKey only where it is told to.
    "sharedaccesskey": "sasKey",
    "sharedaccesskeyname": "sasKeyName",
    "sharedaccesssignature": "sasToken",
}
# Of the old connector, with nothing to do here: taken, with a word in the log.
NOT_USED = {
    "slowpartitionadjustment": "partitions are read independently here",
    "maxacceptablebatchreceivetime": "partitions are read independently here",
    "useaadauth": "Penstock and this source sign with SAS keys",
    "aadauthcallback": "Penstock and this source sign with SAS keys",
    "aadauthcallbackparams": "Penstock and this source sign with SAS keys",
    "metricplugin": "see the query's lastProgress and `penstock group lag`",
    "throttlingstatusplugin": "see the query's lastProgress and `penstock group lag`",
    "threadpoolsize": "no thread pool is used",
    "maxsilenttime": "a link that is silent is asked whether it lives",
    "usesimulatedclient": "use penstock.testing.broker() in tests",
}
# Spark's own, which come along in the same map.
SPARKS = {"path", "checkpointlocation", "outputmode", "queryname", "mode", "paths"}
_BY_LOWER = {name.lower(): name for name in NAMES}

Transport = Literal["amqp", "amqps", "wss"]
PropertiesFormat = Literal["json", "string", "variant"]


class HubTarget(msgspec.Struct, frozen=True, kw_only=True):
    """Which hub, and how to get there."""

    connection_string: Secret
    eventhub_name: str
    ca_file: str | None = None
    insecure: bool = False
    websocket: bool = False
    timeout_s: float = 60.0
    https_url: str | None = None


class ReadOptions(msgspec.Struct, frozen=True, kw_only=True):
    target: HubTarget
    consumer_group: str
    start: Position | None  # None: earliest for a batch, latest for a stream
    starts: dict[str, Position]
    start_must_exist: bool  # Kafka's strategy `error` for a time behind the last event
    end: Position
    ends: dict[str, Position]
    max_events_per_trigger: int | None
    max_bytes_per_trigger: int
    min_events_per_trigger: int | None
    max_trigger_delay_s: float
    max_events_per_task: int | None
    min_partitions: int | None
    fail_on_data_loss: bool
    owner_level: int | None
    prefetch: int | None
    receiver_timeout_s: float
    discover_partitions: bool
    commit_to_service: bool


class RowOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the columns are: the only options that the schema depends on."""

    properties: bool = True
    system: bool = True
    hub: bool = False
    properties_format: PropertiesFormat = "json"
    body_text: bool = False


class WriteOptions(msgspec.Struct, frozen=True, kw_only=True):
    target: HubTarget
    partition_id: str | None
    partition_key: str | None
    batch_bytes_max: int | None
    batch_events_max: int | None
    linger_s: float
    waits_when_throttled: bool
    retries_max: int
    retry_backoff_s: float
    idempotent: bool | None  # None: where the service knows it
    sink_id: str | None


class EventHubsOptions:
    """The given ones by their proper names. Raises ArgumentError for a name that nobody knows."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self._values: dict[str, str] = {}
        self.notes: list[str] = []
        for key, value in given.items():
            self._take(key, str(value))

    def __repr__(self) -> str:
        return f"<Options {', '.join(sorted(self._values))}>"

    def _take(self, key: str, value: str) -> None:
        plain = key.lower().removeprefix(_PREFIX)
        if plain.startswith(_OF_TABLE):
            raise ArgumentError(
                "Spark does not hand the options of a table to a source in Python: use CREATE "
                "TEMPORARY VIEW ... USING eventhubs OPTIONS (...) instead of CREATE TABLE."
            )
        if plain in SPARKS and not key.lower().startswith(_PREFIX):
            return
        if plain in NOT_USED:
            if plain == "slowpartitionadjustment" and value.lower() == "false":
                return
            self.notes.append(f"the option {key} is not used: {NOT_USED[plain]}")
            return
        if plain == "saskey" and REDACTED_VARIABLE not in os.environ:
            self.notes.append(
                f"the option {key} shows in the plans of this session, unless "
                "spark.redaction.regex names it; give the key as sharedAccessKey, which Spark hides"
            )
        name = _BY_LOWER.get(plain) or ALIASES.get(plain)
        if name is None:
            raise ArgumentError(_unknown(key, plain))
        if name == "startingPosition" and plain == "startingoffsets" and is_by_partition(value):
            name = "startingPositions"
        if name == "endingPosition" and plain == "endingoffsets" and is_by_partition(value):
            name = "endingPositions"
        before = self._values.get(name)
        if before is not None and before != value:
            raise ArgumentError(
                f"The option {name} is given twice with different values (once as {key!r}, with or "
                "without the prefix 'eventhubs.' or under another name): give it once."
            )
        self._values[name] = value

    def text(self, name: str) -> str | None:
        return self._values.get(name)

    def integer(self, name: str, least: int, most: int = 2**62) -> int | None:
        text = self._values.get(name)
        if text is None:
            return None
        stripped = text.strip()
        if not re.fullmatch(r"-?\d{1,19}", stripped, re.ASCII) or not (
            least <= int(stripped) <= most
        ):
            bounds = f"{least} to {most}" if most < 2**62 else f"{least} or more"
            raise ArgumentError(
                f"{name} is {_quote_value(text)}: a whole number, {bounds}, is expected."
            )
        return int(stripped)

    def boolean(self, name: str, default: bool) -> bool:
        text = self._values.get(name)
        if text is None:
            return default
        word = text.strip().lower()
        if word not in ("true", "false"):
            raise ArgumentError(f"{name} is {_quote_value(text)}: true or false is expected.")
        return word == "true"

    def choice(self, name: str, allowed: tuple[str, ...], default: str) -> str:
        text = self._values.get(name)
        word = default if text is None else text.strip().lower()
        if word not in allowed:
            raise ArgumentError(
                f"{name} is {_quote_value(text)}: {' or '.join(allowed)} is expected."
            )
        return word

    def seconds(self, name: str, default: float) -> float:
        text = self._values.get(name)
        return default if text is None else parse_duration(name, text)

    # --- the whole ------------------------------------------------------------------------------

    def rows(self) -> RowOptions:
        return RowOptions(
            properties=self.boolean("includeProperties", True),
            system=self.boolean("includeSystemProperties", True),
            hub=self.boolean("includeEventHub", False),
            properties_format=self.choice(  # type: ignore[arg-type]
                "propertiesFormat", ("json", "string", "variant"), "json"
            ),
            body_text=self.choice("bodyFormat", ("binary", "string"), "binary") == "string",
        )

    def read(self) -> ReadOptions:
        target = self.target()
        start, strategy = self._start()
        return ReadOptions(
            target=target,
            consumer_group=self.text("consumerGroup") or "$Default",
            start=start,
            starts=self._positions("startingPositions", target.eventhub_name),
            start_must_exist=strategy == "error" and self.text("startingTimestamp") is not None,
            end=self._end(),
            ends=self._positions("endingPositions", target.eventhub_name),
            max_events_per_trigger=self.integer("maxEventsPerTrigger", 1),
            max_bytes_per_trigger=self.integer("maxBytesPerTrigger", 1) or 256 * _MB,
            min_events_per_trigger=self.integer("minEventsPerTrigger", 1),
            max_trigger_delay_s=self.seconds("maxTriggerDelay", 15 * 60.0),
            max_events_per_task=self.integer("maxEventsPerTask", 1),
            min_partitions=self.integer("minPartitions", 1),
            fail_on_data_loss=self.boolean("failOnDataLoss", True),
            owner_level=0 if self.boolean("useExclusiveReceiver", False) else None,
            prefetch=self.integer("prefetchCount", 1, _PREFETCH_MAX),
            receiver_timeout_s=self.seconds("receiverTimeout", 60.0),
            discover_partitions=self.boolean("dynamicPartitionDiscovery", True),
            commit_to_service=self.boolean("commitToService", True),
        )

    def write(self) -> WriteOptions:
        partition_id, partition_key = self.text("partitionId"), self.text("partitionKey")
        if partition_id is not None and partition_key is not None:
            raise ArgumentError("partitionId and partitionKey exclude each other: give one.")
        idempotent = None if self.text("idempotent") is None else self.boolean("idempotent", True)
        return WriteOptions(
            target=self.target(),
            partition_id=partition_id,
            partition_key=partition_key,
            batch_bytes_max=self.integer("maxBatchSizeBytes", 1024, 16 * _MB),
            batch_events_max=self.integer("maxBatchEvents", 1),
            linger_s=self.seconds("linger", 0.0),
            waits_when_throttled=self.choice("throttling", ("wait", "fail"), "wait") == "wait",
            retries_max=self._or(self.integer("maxRetries", 0, 1000), 10),
            retry_backoff_s=self.seconds("retryBackoff", 0.8),
            idempotent=idempotent,
            sink_id=self.text("sinkId"),
        )

    def target(self) -> HubTarget:
        """Raises ArgumentError without a word of any secret."""
        # `printed + ";EntityPath=..."` is often written with one semicolon too many.
        pieces = self._connection_string().split(";")
        connection_string = ";".join(piece for piece in pieces if piece.strip())
        transport = self.text("transport")
        if transport is not None:
            word = self.choice("transport", ("amqp", "amqps", "wss"), "amqps")
            connection_string = _with_tls(connection_string, tls=word != "amqp")
        from penstock.model.connection_string import parse_connection_string

        endpoint = parse_connection_string(connection_string)
        hub = self.text("eventHubName") or endpoint.hub
        if not hub:
            raise ArgumentError(
                "No hub is named: give the option eventHubName, or EntityPath in the connection "
                "string."
            )
        insecure = self.boolean("tls.insecure", False)
        ca_file = self.text("tls.caFile")
        if ca_file is not None and not Path(ca_file).is_file():
            raise ArgumentError(f"tls.caFile is {_quote_value(ca_file)}: there is no such file.")
        if ca_file is None and endpoint.tls and not insecure:
            ca_file = _known_ca_file(connection_string, endpoint.host)
        return HubTarget(
            connection_string=Secret(connection_string),
            eventhub_name=hub,
            ca_file=ca_file,
            insecure=insecure,
            websocket=transport is not None and transport.strip().lower() == "wss",
            timeout_s=self.seconds("operationTimeout", 60.0),
            https_url=self.text("https.url"),
        )

    # --- inside ---------------------------------------------------------------------------------

    def _or(self, value: int | None, default: int) -> int:
        return default if value is None else value

    def _start(self) -> tuple[Position | None, str]:
        strategy = self.choice("startingTimestampStrategy", ("error", "latest"), "error")
        time, text = self.text("startingTimestamp"), self.text("startingPosition")
        if time is not None and text is not None:
            raise ArgumentError("startingPosition and startingTimestamp exclude each other.")
        if time is not None:
            return parse_time("startingTimestamp", time), strategy
        return None if text is None else parse_position("startingPosition", text), strategy

    def _end(self) -> Position:
        time, text = self.text("endingTimestamp"), self.text("endingPosition")
        if time is not None and text is not None:
            raise ArgumentError("endingPosition and endingTimestamp exclude each other.")
        if time is not None:
            return parse_time("endingTimestamp", time)
        end = LATEST if text is None else parse_position("endingPosition", text)
        if end is EARLIEST:
            raise ArgumentError("endingPosition is earliest: such a query reads nothing.")
        return end

    def _positions(self, name: str, hub: str) -> dict[str, Position]:
        text = self.text(name)
        return {} if text is None else parse_positions(name, text, hub)

    def _connection_string(self) -> str:
        ways = [n for n in _CONNECTION_WAYS if self.text(n) is not None]
        if len(ways) > 1:
            raise ArgumentError(f"The options {' and '.join(ways)} exclude each other: give one.")
        if self.text("endpoint") is not None:
            return self._compose_connection_string()
        if variable := self.text("connectionString.env"):
            return _from_environment(variable)
        if file := self.text("connectionString.file"):
            return _from_file(Path(file))
        given = self.text("connectionString") or os.environ.get("PENSTOCK_CONNECTION_STRING")
        if not given:
            raise ArgumentError(
                "No connection is given: set the option connectionString, connectionString.env, "
                "connectionString.file or endpoint, or PENSTOCK_CONNECTION_STRING in the driver's "
                "environment before the session is made."
            )
        return given

    def _compose_connection_string(self) -> str:
        endpoint = self.text("endpoint") or ""
        named = endpoint if "://" in endpoint else f"sb://{endpoint}"
        token, key, key_name = (self.text(n) for n in ("sasToken", "sasKey", "sasKeyName"))
        if token is not None and key is None:
            credentials = f"SharedAccessSignature={token}"
        elif token is None and key is not None and key_name is not None:
            credentials = f"SharedAccessKeyName={key_name};SharedAccessKey={key}"
        else:
            raise ArgumentError("With endpoint give sasKeyName and sasKey, or sasToken alone.")
        if any(";" in part for part in (named, token or "", key or "", key_name or "")):
            raise ArgumentError("endpoint, sasKeyName, sasKey and sasToken may not hold a ';'.")
        return f"Endpoint={named};{credentials}"


_CONNECTION_WAYS = (
    "connectionString",
    "connectionString.env",
    "connectionString.file",
    "endpoint",
)


def parse_duration(option: str, text: str) -> float:
    """`30s`, `15m`, `500ms`, `2h`, `1d`, `PT1M30S`, or a number of seconds."""
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
    raise ArgumentError(
        f"{option} is {_quote_value(text)}: a duration such as 30s, 15m or PT1M30S."
    )


_UNITS = {
    "": 1.0,
    "ms": 0.001,
    **dict.fromkeys(("s", "sec", "second", "seconds"), 1.0),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hour", "hours"), 3600.0),
    **dict.fromkeys(("d", "day", "days"), 86400.0),
}


def _unknown(key: str, plain: str) -> str:
    candidates = _BY_LOWER | {name: name for name in NOT_USED}
    near = difflib.get_close_matches(plain, candidates, n=1, cutoff=0.5)
    if near:
        hint = f"did you mean {candidates[near[0]]}?"
    else:
        far = difflib.get_close_matches(plain, _BY_LOWER, n=1, cutoff=0.0)[0]
        hint = f"the nearest is {_BY_LOWER[far]}; docs/spark.md lists them all."
    # The key alone: its value may be a secret whose name was misspelt.
    return f"The format eventhubs has no option {_quote_value(key)}: {hint}"


def _with_tls(connection_string: str, *, tls: bool) -> str:
    parts = [
        part
        for part in connection_string.strip().strip(";").split(";")
        if part.partition("=")[0].strip().casefold() != "usedevelopmentemulator"
    ]
    return ";".join(parts if tls else [*parts, "UseDevelopmentEmulator=true"])


def _known_ca_file(connection_string: str, host: str) -> str | None:
    """Of a service that this environment knows: named there, or running on the data directory
    here. Azure's own hosts are signed by authorities that every machine has."""
    from penstock.checkpoints.service_client import locate_service

    named = os.environ.get("PENSTOCK_CA_FILE")
    if named and Path(named).is_file() and _AZURE not in host.casefold():
        return named
    return locate_service(connection_string).ca_file


def _from_environment(variable: str) -> str:
    value = os.environ.get(variable)
    if not value:
        raise ArgumentError(
            f"connectionString.env names {_quote_value(variable)}, which is not set in the "
            "environment "
            "that Spark was started with: set it before the session is made."
        )
    return value


def _from_file(file: Path) -> str:
    try:
        with file.open(encoding="utf-8") as opened:
            text = opened.read(_CONNECTION_STRING_BYTES_MAX + 1)
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "not UTF-8"
        raise ArgumentError(
            f"connectionString.file is {_quote_value(str(file))}, which cannot be read: {why}."
        ) from None
    if len(text) > _CONNECTION_STRING_BYTES_MAX:
        raise ArgumentError(
            f"connectionString.file is {_quote_value(str(file))}: too long for one."
        )
    return text.strip()


def _quote_value(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_MAX else text[:_SHOWN_MAX] + "..."
