"""Captured history as DataFrames: alone, and continued into the live hub.

`penstock.capture.read` is `read` here. What is read is decided when it is called: the files that
are there then; what the log has behind the last of them is live.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.capture.description import NAME_FORMAT_DEFAULT, CaptureSettings
from penstock.capture.destinations import Destination, Store, Target, checked_destination
from penstock.capture.listing import Listed, listed
from penstock.model.errors import ArgumentError
from penstock.spark.capture_frames import CapturedPlan, next_sequence, write_captured_plan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_US = timedelta(microseconds=1)
_INTERVAL_MAX_S = 900
Moment = datetime | str | None


class Where(msgspec.Struct, frozen=True, kw_only=True):
    """Whose files, and where they are."""

    target: Target
    namespace: str
    hub: str
    name_format: str


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
    and PENSTOCK_ADMIN_TOKEN); with it, `options` are the destination's (`account_name`,
    `account_key`, ...). `source` are further options of the `eventhubs` source."""
    where = _where(hub, url, options, container, namespace, name_format)
    history, following = _history(spark, where, start, end)
    if not live:
        return history
    text = connection_string or os.environ.get("PENSTOCK_CONNECTION_STRING")
    reader = spark.read.format("eventhubs")
    tail = _live(reader, text, hub, following, source)
    return history.unionByName(_between(tail, start, end).select(history.columns))


def bridge(
    spark: SparkSession,
    hub: str,
    *,
    start: Moment = None,
    connection_string: str | None = None,
    source: Mapping[str, str] | None = None,
    **where: Any,
) -> tuple[DataFrame, DataFrame]:
    """History, and a stream that begins behind it: no event is in both, none in neither."""
    place = _where(
        hub,
        where.get("url"),
        where.get("options"),
        where.get("container", ""),
        where.get("namespace"),
        where.get("name_format", NAME_FORMAT_DEFAULT),
    )
    history, following = _history(spark, place, start, None)
    text = connection_string or os.environ.get("PENSTOCK_CONNECTION_STRING")
    stream = _live(spark.readStream.format("eventhubs"), text, hub, following, source or {})
    return history, stream.select(history.columns)


def compact(
    target: Target,
    *,
    namespace: str,
    hub: str,
    description: Mapping[str, Any],
    to: str,
    since: str | None = None,
    until: str | None = None,
    master: str = "local[*]",
) -> int:
    """Join a hub's files into Parquet below `to`, `date=.../hour=...`; how many events that are.
    Hours that are there already are replaced, so it can be done again."""
    from penstock.spark.sessions import session

    settings = CaptureSettings.of(description)
    where = Where(target=target, namespace=namespace, hub=hub, name_format=settings.name_format)
    spark = session(
        app_name="penstock-compact",
        master=master,
        **{
            "spark.sql.sources.partitionOverwriteMode": "dynamic",
            "spark.sql.session.timeZone": "UTC",
        },
    )
    try:
        frame, _ = _history(spark, where, since, until)
        return write_by_hour(frame, to)
    finally:
        spark.stop()


def write_by_hour(frame: DataFrame, to: str) -> int:
    """One file for each hour and hub's partition."""
    from pyspark.sql import functions as f

    placed = frame.withColumn("date", f.to_date("enqueuedTime")).withColumn(
        "hour", f.hour("enqueuedTime")
    )
    ordered = placed.repartition("date", "hour", "partition").sortWithinPartitions(
        "date", "hour", "partition", "sequenceNumber"
    )
    ordered.write.mode("overwrite").partitionBy("date", "hour").parquet(to)
    return frame.count()


def _history(
    spark: SparkSession, where: Where, start: Moment, end: Moment
) -> tuple[DataFrame, dict[str, int]]:
    """The frame, and behind which event each partition's files end."""
    from penstock.spark.sources.captured import SOURCE, CapturedSource

    store = Store(where.target)
    files = listed(store.files(), where.name_format, where.namespace, where.hub)
    since_us, until_us = _microseconds("start", start), _microseconds("end", end)
    plan = CapturedPlan(
        destination=where.target.destination,
        container=where.target.container,
        files=[file for file in files if _may_hold(file, files, since_us, until_us)],
        since_us=since_us,
        until_us=until_us,
    )
    spark.dataSource.register(CapturedSource)
    frame = spark.read.format(SOURCE).option("plan", write_captured_plan(plan)).load()
    following = {}
    for partition in sorted({file.partition for file in files}):
        own = [file for file in files if file.partition == partition]
        number = next_sequence(store, own)
        if number is not None:
            following[partition] = number
    return frame, following


def _may_hold(
    file: Listed, files: list[Listed], since_us: int | None, until_us: int | None
) -> bool:
    """By its name: its events were stored before its window closed, and not long before. A file
    too many is opened and gives nothing; none too few."""
    closed_us = (file.named_s + 60) * 1_000_000  # names may be late, and clocks apart
    opened_us = (file.named_s - 2 * _INTERVAL_MAX_S) * 1_000_000
    if since_us is not None and closed_us < since_us:
        return False
    # A window that waited for its first events may have opened long before it closed; the file
    # before it says when at the earliest.
    before = [each.named_s for each in files if each.partition == file.partition]
    earlier = [each for each in before if each < file.named_s]
    if earlier:
        opened_us = (max(earlier) - 60) * 1_000_000
    return until_us is None or opened_us < until_us


def _live(
    reader: Any,
    connection_string: str | None,
    hub: str,
    following: Mapping[str, int],
    source: Mapping[str, str],
) -> Any:
    if not connection_string:
        raise ArgumentError(
            "What is live is read from the hub: give connection_string, or set "
            "PENSTOCK_CONNECTION_STRING."
        )
    positions = {key: number for key, number in following.items()}
    options = {
        "eventhubs.connectionString": connection_string,
        "eventhubs.eventHubName": hub,
        "eventhubs.startingPosition": "earliest",
        **source,
    }
    if positions:
        options["eventhubs.startingPositions"] = json.dumps(positions)
    return reader.options(**options).load()


def _between(frame: Any, start: Moment, end: Moment) -> Any:
    from pyspark.sql import functions as f

    for name, moment in (("start", start), ("end", end)):
        number = _microseconds(name, moment)
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
) -> Where:
    if url is None:
        return _asked(hub, namespace)
    if namespace is None:
        raise ArgumentError("With url the namespace has to be named too: it is part of the paths.")
    given = dict(options or {})
    destination = Destination(
        name="given", url=checked_destination("given", url, given), options=given
    )
    target = Target(destination=destination, container=container)
    return Where(target=target, namespace=namespace, hub=hub, name_format=name_format)


def _asked(hub: str, namespace: str | None) -> Where:
    """Of the service that the environment names; credentials are of the environment too."""
    from penstock.capture.destinations import environment_destination, resolve
    from penstock.management.client import ManagementClient

    with ManagementClient.find() as client:
        namespace = namespace or client.namespaces()[0].name
        description = client.hub(namespace, hub).capture
        if description is None:
            raise ArgumentError(f"The event hub '{hub}' was never captured.")
        known = [
            environment_destination(each["name"], each["url"], os.environ)
            for each in client.capture_destinations()
        ]
    settings = CaptureSettings.of(description)
    target = resolve(known, settings.account, settings.container)
    return Where(target=target, namespace=namespace, hub=hub, name_format=settings.name_format)


def _microseconds(name: str, moment: Moment) -> int | None:
    if moment is None:
        return None
    try:
        at = datetime.fromisoformat(moment) if isinstance(moment, str) else moment
    except ValueError:
        raise ArgumentError(f"{name} is {moment!r}: an ISO time is expected.") from None
    at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    return (at - _EPOCH) // _US
