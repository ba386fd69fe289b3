"""Captured history as DataFrames: alone, and bridged to the live hub.

`penstock.capture.read` calls `read`. The files that exist at the call are history; what the log has
after the last of them is live.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.capture import destinations, hub_files
from penstock.capture.description import INTERVAL_S, NAME_FORMAT_DEFAULT, check_name_format
from penstock.capture.hub_files import FileLocationFilter, ListedFile
from penstock.capture.storage import FileStore
from penstock.formats.quantities import EPOCH
from penstock.model.errors import ArgumentError
from penstock.spark.capture.plan import find_reading_rule

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BEYOND_US = 2**62  # later than every event
_TOLERANCE_S = 120  # names of a backfill may be a minute early, and clocks differ
_log = logging.getLogger("penstock.capture")
Moment = datetime | str | None


class HistoryLocation(msgspec.Struct, frozen=True, kw_only=True):
    """A hub, where its files are, and source options for the live hub."""

    locations: list[FileLocationFilter]
    namespace: str
    hub: str
    live: dict[str, str] = {}

    def __repr__(self) -> str:  # the options contain a key
        return f"HistoryLocation({self.namespace}/{self.hub})"


def read(
    spark: SparkSession,
    hub: str,
    *,
    start: Moment = None,
    end: Moment = None,
    live: bool = False,
    connection_string: str | None = None,
    **options: Any,
) -> DataFrame:
    """The captured events of a hub, stored from `start` on and before `end` (UTC), in the columns
    of the `eventhubs` source. With `live` also those that are in the log and in no file yet, each
    event once.

    Without the option `url` the service is asked where the files are (PENSTOCK_DATA, or
    PENSTOCK_ADMIN_URL and PENSTOCK_ADMIN_TOKEN) and how the hub is read; with it, `container`,
    `namespace` and `name_format` locate the files. `options` are the destination's
    (`account_name`, `account_key`, ...). Further ones are of the `eventhubs` source. Raises
    PenstockError."""
    files = _find_files(hub, connection_string, **options)
    history = files.frame(spark, start, end)
    if not live:
        return history
    return history.unionByName(files.load_live(spark.read, start, end))


def bridge(
    spark: SparkSession,
    hub: str,
    *,
    start: Moment = None,
    connection_string: str | None = None,
    **options: Any,
) -> tuple[DataFrame, DataFrame]:
    """History, and a stream that begins after it: each event is in exactly one of them. Parameters
    are as for `read`."""
    files = _find_files(hub, connection_string, **options)
    return files.frame(spark, start, None), files.load_live(spark.readStream, start, None)


class CapturedFiles:
    """The files that a hub has now. Raises DestinationError."""

    def __init__(self, where: HistoryLocation) -> None:
        self._where = where
        self._stores = [FileStore(location.target) for location in where.locations]
        self._files = hub_files.list_hub_files(
            where.locations, self._stores, where.namespace, where.hub
        )

    def frame(self, spark: SparkSession, start: Moment, end: Moment) -> DataFrame:
        """Their events, stored from `start` on and before `end`."""
        from penstock.spark.capture import history_source

        since_us = to_microseconds("start", start, -BEYOND_US)
        until_us = to_microseconds("end", end, BEYOND_US)
        plan = history_source.HistoryPlan(
            targets=[location.target for location in self._where.locations],
            files=select_files(self._files, since_us, until_us),
            since_us=since_us,
            until_us=until_us,
        )
        spark.dataSource.register(history_source.HistoryDataSource)
        file = history_source.write_captured_plan(plan)
        return spark.read.format(history_source.SOURCE).option("plan", file).load()

    def load_live(self, reader: Any, start: Moment, end: Moment) -> Any:
        """The events of the live hub that follow the last ones of the files, stored from `start`
        on and before `end`."""
        from pyspark.sql import functions as f

        from penstock.spark.capture.history_source import SCHEMA, next_sequence

        if not self._where.live:
            raise ArgumentError(
                "Live events are read from the hub: give connection_string, or set "
                "PENSTOCK_CONNECTION_STRING."
            )
        options = {
            "eventhubs.eventHubName": self._where.hub,
            "eventhubs.startingPosition": "earliest",
            **self._where.live,
        }
        following = {
            key: number
            for key, files in itertools.groupby(self._files, key=lambda file: file.partition)
            if (number := next_sequence(self._stores, list(files))) is not None
        }
        if following:
            options["eventhubs.startingPositions"] = json.dumps(following)
        frame = reader.format("eventhubs").options(**options).load()
        for name, moment in (("start", start), ("end", end)):
            if moment is not None:
                bound = f.timestamp_micros(f.lit(to_microseconds(name, moment, 0)))
                column = f.col("enqueuedTime")
                frame = frame.where(column >= bound if name == "start" else column < bound)
        return frame.select(SCHEMA.names)


def select_files(files: Sequence[ListedFile], since_us: int, until_us: int) -> list[ListedFile]:
    """Files that can have events of that time, by their names: too many cost time, too few would
    lose events.

    A window's events were stored before it closed, and at most an interval before that. Its name
    is the time when it closed, or later: where windows close more often than once a second, each
    is named a second after the one before. So a name may be late by as many seconds as the names
    before it are consecutive. A second without a file may be a window without a file, which took
    at least an interval."""
    chosen = []
    before: ListedFile | None = None
    late_s = 0
    for file in files:
        if before is None or before.partition != file.partition:
            late_s = 0
        else:
            distance_s = file.named_s - before.named_s
            gap_s = max(0, distance_s - 1)
            late_s = max(0, late_s + distance_s - gap_s * INTERVAL_S[0])
        before = file
        closed_us = (file.named_s + _TOLERANCE_S) * 1_000_000
        opened_us = (file.named_s - late_s - INTERVAL_S[1] - _TOLERANCE_S) * 1_000_000
        if closed_us >= since_us and opened_us < until_us:
            chosen.append(file)
    return chosen


def _find_files(
    hub: str,
    connection_string: str | None,
    *,
    url: str | None = None,
    options: Mapping[str, str] | None = None,
    container: str = "",
    namespace: str | None = None,
    name_format: str = NAME_FORMAT_DEFAULT,
    **source: str,
) -> CapturedFiles:
    """`source` are options of the `eventhubs` source."""
    storage = dict(options or {})
    if url is None:
        where = locate_history(hub, namespace, storage)
    elif namespace is None:
        raise ArgumentError("With url, give the namespace too: it is part of the paths.")
    else:
        destinations.check_destination("url", url, storage)
        destination = destinations.Destination(name="url", url=url, options=storage)
        target = destinations.resolve_destination([destination], "url", container)
        location = FileLocationFilter(target=target, name_format=check_name_format(name_format))
        where = HistoryLocation(locations=[location], namespace=namespace, hub=hub)
    text = connection_string or os.environ.get("PENSTOCK_CONNECTION_STRING")
    live = {"eventhubs.connectionString": text} if text else where.live
    return CapturedFiles(msgspec.structs.replace(where, live=live and {**live, **source}))


def locate_history(hub: str, namespace: str | None, options: dict[str, str]) -> HistoryLocation:
    """Ask the service that the environment names. Credentials of destinations come from the
    environment or from `options`. Raises PenstockError."""
    from penstock.management.client import ManagementClient

    with ManagementClient.find() as client:
        namespace = namespace or client.namespaces()[0].name
        statuses = [
            status
            for status in client.capture_status()
            if (status.namespace, status.hub.casefold()) == (namespace, hub.casefold())
        ]
        if not statuses:
            client.hub(namespace, hub)  # raises NotFound, unless it was never captured
            raise ArgumentError(f"The event hub '{hub}' was never captured.")
        configured = [
            destinations.environment_destination(summary.name, summary.url, os.environ, options)
            for summary in client.capture_destinations()
        ]
        live = {}
        rule = find_reading_rule(client, namespace, preferred="Listen")
        if rule is not None:
            keys = client.keys(namespace, None, rule.name)
            live["eventhubs.connectionString"] = keys.primary_connection_string
            if client.ca_file:
                live["eventhubs.tls.caFile"] = client.ca_file
    (status,) = statuses
    locations, warnings = hub_files.resolve_locations(
        status.places, configured, created_ms=status.created_ms
    )
    for warning in warnings:
        _log.warning("%s", warning)
    return HistoryLocation(locations=locations, namespace=namespace, hub=status.hub, live=live)


def to_microseconds(name: str, moment: Moment, default: int) -> int:
    """Microseconds since 1970. A time without a zone is UTC. Raises ArgumentError."""
    if moment is None:
        return default
    try:
        at = datetime.fromisoformat(moment) if isinstance(moment, str) else moment
    except ValueError:
        raise ArgumentError(f"{name} is {moment!r}: an ISO time is expected.") from None
    at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    return (at - EPOCH) // timedelta(microseconds=1)
