"""Captured history as DataFrames: alone, and continued into the live hub.

`penstock.capture.read` is `read` here. What is read is decided when it is called: the files that
are there then; what the log has behind the last of them is live.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.capture.description import (
    INTERVAL_S,
    NAME_FORMAT_DEFAULT,
    check_name_format,
)
from penstock.capture.destinations import (
    Destination,
    FileStore,
    check_destination,
    environment_destination,
    resolve_destination,
)
from penstock.capture.hub_files import (
    FileLocationFilter,
    ListedFile,
    file_locations,
    list_hub_files,
)
from penstock.capture.runs import FileLocation
from penstock.model.errors import ArgumentError
from penstock.spark.capture.history_rows import HistoryPlan, next_sequence, write_captured_plan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from penstock.management.client import ManagementClient

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_US = timedelta(microseconds=1)
_APART_S = 120  # names of a backfill may be a minute early, and clocks apart
_log = logging.getLogger("penstock.capture")
Moment = datetime | str | None


class HistoryLocation(msgspec.Struct, frozen=True, kw_only=True):
    """Whose files, where they are, and how the live hub is reached if nobody says otherwise."""

    shelves: list[FileLocationFilter]
    namespace: str
    hub: str
    live: dict[str, str] = {}

    def __repr__(self) -> str:
        return f"Where({self.namespace}/{self.hub})"


def read(
    spark: SparkSession,
    hub: str,
    *,
    start: Moment = None,
    end: Moment = None,
    live: bool = False,
    url: str | None = None,
    options: Mapping[str, str] | None = None,
    container: str = "",
    namespace: str | None = None,
    name_format: str = NAME_FORMAT_DEFAULT,
    connection_string: str | None = None,
    **source: str,
) -> DataFrame:
    """The captured events of a hub, stored from `start` on and before `end` (UTC), in the columns
    of the `eventhubs` source. With `live` also those that are in the log and in no file yet, each
    event once.

    Without `url` the service is asked where the files are (PENSTOCK_DATA, or PENSTOCK_ADMIN_URL
    and PENSTOCK_ADMIN_TOKEN) and how the hub is read; with it, `container`, `namespace` and
    `name_format` say the rest. `options` are the destination's (`account_name`, `account_key`,
    ...), `source` further ones of the `eventhubs` source."""
    where = _where(hub, url, options, container, namespace, name_format)
    shelved = CapturedFiles(where)
    history = shelved.frame(spark, start, end)
    if not live:
        return history
    following = shelved.next_sequences()
    tail = _live(spark.read.format("eventhubs"), where, connection_string, following, source)
    return history.unionByName(_between(tail, start, end).select(history.columns))


def bridge(
    spark: SparkSession,
    hub: str,
    *,
    start: Moment = None,
    url: str | None = None,
    options: Mapping[str, str] | None = None,
    container: str = "",
    namespace: str | None = None,
    name_format: str = NAME_FORMAT_DEFAULT,
    connection_string: str | None = None,
    **source: str,
) -> tuple[DataFrame, DataFrame]:
    """History, and a stream that begins behind it: no event is in both, none in neither. What both
    are told is as for `read`."""
    where = _where(hub, url, options, container, namespace, name_format)
    shelved = CapturedFiles(where)
    history = shelved.frame(spark, start, None)
    stream = _live(
        spark.readStream.format("eventhubs"),
        where,
        connection_string,
        shelved.next_sequences(),
        source,
    )
    return history, _between(stream, start, None).select(history.columns)


class CapturedFiles:
    """The files of a hub that are there now. Raises DestinationError."""

    def __init__(self, where: HistoryLocation) -> None:
        self._targets = [shelf.target for shelf in where.shelves]
        self._stores = [FileStore(target) for target in self._targets]
        self._files = list_hub_files(where.shelves, self._stores, where.namespace, where.hub)

    def frame(self, spark: SparkSession, start: Moment, end: Moment) -> DataFrame:
        """Their events."""
        from penstock.spark.capture.history_source import SOURCE, HistoryDataSource

        since_us, until_us = to_microseconds("start", start), to_microseconds("end", end)
        plan = HistoryPlan(
            targets=self._targets,
            files=select_files(self._files, since_us, until_us),
            since_us=since_us,
            until_us=until_us,
        )
        spark.dataSource.register(HistoryDataSource)
        return spark.read.format(SOURCE).option("plan", write_captured_plan(plan)).load()

    def next_sequences(self) -> dict[str, int]:
        """Behind which event each partition's files end. Opens files, so it is asked for only by
        who goes on there."""
        own: dict[str, list[ListedFile]] = {}
        for file in self._files:
            own.setdefault(file.partition, []).append(file)
        found = {key: next_sequence(self._stores, files) for key, files in own.items()}
        return {key: number for key, number in found.items() if number is not None}


def select_files(
    files: Sequence[ListedFile], since_us: int | None, until_us: int | None
) -> list[ListedFile]:
    """By their names: a file too many is opened and gives nothing; none too few.

    A window's events were stored before it closed, and at most an interval before that. Its name
    tells when it closed, or later: of windows that close faster than one a second each is named a
    second behind the one before. So a name may be late by as much as the names before it follow
    each other second by second. A second that is left out may be a window without a file, which
    took an interval at least."""
    chosen = []
    before: ListedFile | None = None
    late_s = 0
    for file in files:
        if before is None or before.partition != file.partition:
            late_s = 0
        else:
            apart_s = file.named_s - before.named_s
            left_out = max(0, apart_s - 1)
            late_s = max(0, late_s + apart_s - left_out * INTERVAL_S[0])
        before = file
        closed_us = (file.named_s + _APART_S) * 1_000_000
        opened_us = (file.named_s - late_s - INTERVAL_S[1] - _APART_S) * 1_000_000
        if since_us is not None and closed_us < since_us:
            continue
        if until_us is None or opened_us < until_us:
            chosen.append(file)
    return chosen


def _live(
    reader: Any,
    where: HistoryLocation,
    connection_string: str | None,
    following: Mapping[str, int],
    source: Mapping[str, str],
) -> Any:
    text = connection_string or os.environ.get("PENSTOCK_CONNECTION_STRING")
    own = {"eventhubs.connectionString": text} if text else where.live
    if not own:
        raise ArgumentError(
            "What is live is read from the hub: give connection_string, or set "
            "PENSTOCK_CONNECTION_STRING."
        )
    options = {
        **own,
        "eventhubs.eventHubName": where.hub,
        "eventhubs.startingPosition": "earliest",
        **source,
    }
    if following:
        options["eventhubs.startingPositions"] = json.dumps(following)
    return reader.options(**options).load()


def _between(frame: Any, start: Moment, end: Moment) -> Any:
    from pyspark.sql import functions as f

    for name, moment in (("start", start), ("end", end)):
        number = to_microseconds(name, moment)
        if number is not None:
            bound = f.timestamp_micros(f.lit(number))
            column = f.col("enqueuedTime")
            frame = frame.where(column >= bound if name == "start" else column < bound)
    return frame


def _where(
    hub: str,
    url: str | None,
    options: Mapping[str, str] | None,
    container: str,
    namespace: str | None,
    name_format: str,
) -> HistoryLocation:
    if url is None:
        return locate_history(hub, namespace, dict(options or {}))
    if namespace is None:
        raise ArgumentError("With url the namespace has to be named too: it is part of the paths.")
    given = dict(options or {})
    destination = Destination(
        name="given", url=check_destination("given", url, given), options=given
    )
    target = resolve_destination([destination], "given", container)
    shelf = FileLocationFilter(target=target, name_format=check_name_format(name_format))
    return HistoryLocation(shelves=[shelf], namespace=namespace, hub=hub)


def locate_history(hub: str, namespace: str | None, options: dict[str, str]) -> HistoryLocation:
    """Of the service that the environment names; credentials are the environment's too, or those
    that are given."""
    from penstock.management.client import ManagementClient

    with ManagementClient.find() as client:
        namespace = namespace or client.namespaces()[0].name
        told = [
            each
            for each in client.capture_status()
            if (each.namespace, each.hub.casefold()) == (namespace, hub.casefold())
        ]
        if not told:
            client.hub(namespace, hub)  # NotFound, unless it was never captured
            raise ArgumentError(f"The event hub '{hub}' was never captured.")
        known = [
            environment_destination(each["name"], each["url"], os.environ, options)
            for each in client.capture_destinations()
        ]
        live = _way_in(client, namespace)
    places = msgspec.convert(told[0].places, list[FileLocation])
    shelves, troubles = file_locations(places, known, created_ms=told[0].created_ms)
    for trouble in troubles:
        _log.warning("%s", trouble)
    return HistoryLocation(shelves=shelves, namespace=namespace, hub=told[0].hub, live=live)


def _way_in(client: ManagementClient, namespace: str) -> dict[str, str]:
    """Options of the `eventhubs` source, with a key that the service tells to whom manages it."""
    able = [rule for rule in client.rules(namespace) if {"Listen", "Manage"} & set(rule.rights)]
    if not able:
        return {}
    able.sort(key=lambda rule: ("Listen" not in rule.rights, rule.name))
    keys = client.keys(namespace, None, able[0].name)
    found = {"eventhubs.connectionString": keys.primary_connection_string}
    if client.ca_file:
        found["eventhubs.tls.caFile"] = client.ca_file
    return found


def to_microseconds(name: str, moment: Moment) -> int | None:
    if moment is None:
        return None
    try:
        at = datetime.fromisoformat(moment) if isinstance(moment, str) else moment
    except ValueError:
        raise ArgumentError(f"{name} is {moment!r}: an ISO time is expected.") from None
    at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    return (at - _EPOCH) // _US
