"""Options of `eventhubs`: every spelling that users have, and no option that does nothing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from penstock.formats.positions import StartKind
from penstock.model.errors import ArgumentError, ConfigurationError
from penstock.spark.capture.stream import SCHEMA, CaptureSource
from penstock.spark.eventhubs.data_source import EventHubsDataSource
from penstock.spark.eventhubs.options import NAMES, EventHubsOptions, parse_duration
from penstock.spark.eventhubs.positions import EARLIEST, LATEST, Position

KEY = "c2VjcmV0LXNlY3JldA=="
TEXT = f"Endpoint=sb://host:5671/;SharedAccessKeyName=n;SharedAccessKey={KEY};EntityPath=hub"


def options(**given: str) -> EventHubsOptions:
    return EventHubsOptions({"connectionString": TEXT} | given)


@pytest.mark.parametrize("prefix", ["", "eventhubs.", "EventHubs."])
def test_names_may_have_the_old_prefix_and_any_case(prefix: str) -> None:
    read = EventHubsOptions(
        {f"{prefix}CONNECTIONSTRING": TEXT, f"{prefix}maxeventspertrigger": "10"}
    ).read()
    assert read.target.eventhub_name == "hub"
    assert read.max_events_per_trigger == 10


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("maxEventPerTrigger", "maxEventsPerTrigger"),
        ("eventhubs.conectionString", "connectionString"),
        ("startingPositon", "startingPosition"),
        ("failOnDataloss2", "failOnDataLoss"),
        ("consumer_group", "consumerGroup"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest_one(given: str, meant: str) -> None:
    with pytest.raises(ArgumentError, match=f"did you mean {meant}\\?") as refused:
        EventHubsOptions({given: KEY})
    assert KEY not in str(refused.value)


def test_the_same_option_twice_must_mean_the_same() -> None:
    assert EventHubsOptions(
        {"maxEventsPerTrigger": "5", "eventhubs.maxEventsPerTrigger": "5"}
    ).text("maxEventsPerTrigger")
    with pytest.raises(ArgumentError, match="given twice"):
        EventHubsOptions({"maxEventsPerTrigger": "5", "maxOffsetsPerTrigger": "6"})


def test_sparks_own_and_retired_options_pass() -> None:
    made = options(
        path="x", checkpointLocation="y", slowPartitionAdjustment="true", threadPoolSize="16"
    )
    assert len(made.notes) == 2
    assert all("not used" in note for note in made.notes)


def test_every_name_is_in_the_documentation() -> None:
    page = (Path(__file__).parents[3] / "docs" / "reference" / "spark.md").read_text()
    assert [name for name in NAMES if f"`{name}`" not in page] == []


def test_defaults_are_as_documented() -> None:
    read = options().read()
    assert (read.consumer_group, read.start, read.end) == ("$Default", None, LATEST)
    assert read.fail_on_data_loss and read.commit_to_service and read.discover_partitions
    assert not read.is_exclusive and read.max_events_per_trigger is None
    assert read.max_bytes_per_trigger == 256 * 1024 * 1024
    written = options().write()
    assert written.idempotent is None and written.throttling == "wait"


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"maxEventsPerTrigger": "0"}, "maxEventsPerTrigger is '0': a whole number, 1 or more"),
        ({"maxEventsPerTrigger": "many"}, "maxEventsPerTrigger is 'many'"),
        ({"prefetchCount": "4001"}, "1 to 4000"),
        ({"failOnDataLoss": "yes"}, "true or false"),
        ({"receiverTimeout": "soon"}, "a duration such as 30s"),
        ({"transport": "http"}, "amqp or amqps or wss"),
        ({"propertiesFormat": "xml"}, "json or string or variant"),
        ({"startingPosition": "earliest", "startingTimestamp": "0"}, "exclude each other"),
        ({"endingPosition": "earliest"}, "reads nothing"),
        ({"tls.caFile": "/nowhere/ca.pem"}, "there is no such file"),
        ({"startingPositions": "[1]"}, "a JSON object is expected"),
        ({"startingPositions": '{"x": 1}'}, "a partition id such as"),
        ({"startingPositions": '{"0": -5}'}, "0 or more"),
    ],
)
def test_a_value_that_cannot_be_meant_is_refused_by_name(given: dict[str, str], named: str) -> None:
    made = options(**given)
    with pytest.raises(ArgumentError, match=named):
        made.read()
        made.rows()


def test_connections_can_be_given_in_four_ways(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "secret"
    file.write_text(TEXT + "\n")
    monkeypatch.setenv("MY_HUB", TEXT)
    composed = {"endpoint": "host:5671", "sasKeyName": "n", "sasKey": KEY, "eventHubName": "hub"}
    for given in (
        {"connectionString": TEXT + ";"},
        {"connectionString.env": "MY_HUB"},
        {"connectionString.file": str(file)},
        composed,
    ):
        target = EventHubsOptions(given).target()
        assert target.eventhub_name == "hub"
        assert KEY in target.connection_string.reveal()
        assert KEY not in repr(target)
    monkeypatch.setenv("PENSTOCK_CONNECTION_STRING", TEXT)
    assert EventHubsOptions({}).target().eventhub_name == "hub"
    assert EventHubsOptions({"eventHubName": "other"}).target().eventhub_name == "other"


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({}, "No connection is given"),
        ({"connectionString": TEXT, "endpoint": "h"}, "exclude each other"),
        (
            {"connectionString.env": "NOT_SET_AT_ALL"},
            "not set in the environment that Spark was started with",
        ),
        ({"connectionString.file": "/nowhere/at/all"}, "cannot be read"),
        ({"endpoint": "h", "sasKey": KEY}, "give sasKeyName and sasKey, or sasToken"),
        ({"endpoint": "h", "sasKeyName": "n", "sasKey": KEY}, "No hub is named"),
        ({"connectionString": "Endpoint=sb://h;EntityPath=e"}, "has no key"),
    ],
)
def test_a_connection_that_is_not_whole_is_refused(
    given: dict[str, str], named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PENSTOCK_CONNECTION_STRING", raising=False)
    with pytest.raises(ArgumentError, match=named) as refused:
        EventHubsOptions(given).target()
    assert KEY not in str(refused.value)


def test_a_key_has_a_name_that_spark_hides_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PENSTOCK_SPARK_REDACTED", raising=False)
    hidden = re.compile("(?i)secret|password|token|access[.]?key")  # spark.redaction.regex
    safe = {"endpoint": "h", "sharedAccessKeyName": "n", "sharedAccessKey": KEY}
    assert all(hidden.search(name) for name in safe if name != "endpoint")
    made = EventHubsOptions(safe | {"eventhubs.eventHubName": "hub"})
    assert KEY in made.target().connection_string.reveal()
    assert made.notes == []
    (note,) = EventHubsOptions({"sasKey": KEY}).notes
    assert "sharedAccessKey" in note and KEY not in note
    monkeypatch.setenv("PENSTOCK_SPARK_REDACTED", "1")
    assert EventHubsOptions({"sasKey": KEY}).notes == []


def test_a_table_is_refused_with_what_works_instead() -> None:
    with pytest.raises(ArgumentError, match="CREATE TEMPORARY VIEW"):
        EventHubsOptions({"connectionString": TEXT, "option.connectionString": TEXT})


def test_an_option_like_no_other_is_refused_with_the_nearest_all_the_same() -> None:
    with pytest.raises(ArgumentError, match=r"no option 'kafka.bootstrap.servers': .* nearest is"):
        options(**{"kafka.bootstrap.servers": "x"})


def test_the_authority_of_a_known_service_is_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ca_file = tmp_path / "ca.pem"
    ca_file.write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PENSTOCK_DATA", raising=False)
    assert options().target().ca_file is None
    monkeypatch.setenv("PENSTOCK_CA_FILE", str(ca_file))
    assert options().target().ca_file == str(ca_file)
    assert options(transport="amqp").target().ca_file is None
    assert options(**{"tls.insecure": "true"}).target().ca_file is None
    azure = TEXT.replace("sb://host", "sb://contoso.servicebus.windows.net")
    assert azure != TEXT
    assert EventHubsOptions({"connectionString": azure}).target().ca_file is None


def test_transport_decides_over_the_connection_string() -> None:
    plain = options(transport="amqp").target().connection_string.reveal()
    assert plain.endswith("UseDevelopmentEmulator=true")
    again = EventHubsOptions({"connectionString": plain, "transport": "wss"}).target()
    assert again.transport == "websocket"
    assert "UseDevelopmentEmulator" not in again.connection_string.reveal()


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30s", 30),
        ("15m", 900),
        ("500ms", 0.5),
        ("2 hours", 7200),
        ("1d", 86400),
        ("60", 60),
        ("PT1M30S", 90),
        ("PT00H03M20S", 200),
        ("P1DT1H", 90000),
        ("pt0.25s", 0.25),
    ],
)
def test_durations_have_many_spellings(text: str, seconds: float) -> None:
    assert parse_duration("it", text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("earliest", EARLIEST),
        ("LATEST", LATEST),
        ("@latest", LATEST),
        ("100", Position(StartKind.SEQUENCE_NUMBER, 100)),
        ("1970-01-01T00:00:01Z", Position(StartKind.TIME, 1000)),
        ("1970-01-01T01:00:00+01:00", Position(StartKind.TIME, 0)),
        ('{"offset": "-1", "seqNo": -1, "enqueuedTime": null, "isInclusive": true}', EARLIEST),
        ('{"offset": "@latest"}', LATEST),
        ('{"offset": "246812"}', Position(StartKind.OFFSET, offset="246812")),
        (
            '{"SeqNo": 7, "IsInclusive": false}',
            Position(StartKind.SEQUENCE_NUMBER, 7, inclusive=False),
        ),
        ('{"enqueuedTime": "1970-01-01T00:00:01.500Z"}', Position(StartKind.TIME, 1500)),
    ],
)
def test_a_position_has_many_spellings(text: str, position: Position) -> None:
    assert options(startingPosition=text).read().start == position


@pytest.mark.parametrize(
    "text",
    ["yesterday", "{", '{"offset": "1", "seqNo": 2}', "{}", '{"sequence": 1}', '{"seqNo": true}'],
)
def test_a_position_that_says_nothing_is_refused(text: str) -> None:
    with pytest.raises(ArgumentError, match="startingPosition"):
        options(startingPosition=text).read()


def test_positions_of_partitions_have_three_spellings() -> None:
    expected = {"0": Position(StartKind.SEQUENCE_NUMBER, 100), "2": LATEST}
    for name, text in (
        ("startingPositions", '{"0": 100, "2": "latest"}'),
        ("startingOffsets", '{"hub": {"0": 100, "2": -1}}'),
        (
            "eventhubs.startingPositions",
            '{"{\\"ehName\\": \\"hub\\", \\"partitionId\\": 0}": {"seqNo": 100},'
            ' "{\\"ehName\\": \\"hub\\", \\"partitionId\\": 2}": {"offset": "@latest"}}',
        ),
    ):
        assert options(**{name: text}).read().starts == expected
    with pytest.raises(ArgumentError, match="for the hub 'other', but this query reads 'hub'"):
        options(startingPositions='{"{\\"ehName\\": \\"other\\", \\"partitionId\\": 0}": 1}').read()


def test_a_plan_of_capture_is_for_the_capture_job_alone() -> None:
    """Its file holds credentials: a query of somebody else's must not have one read."""
    with pytest.raises(ArgumentError, match="no option 'capturePlan'"):
        EventHubsDataSource({"capturePlan": "/somewhere/plan.json"})
    with pytest.raises(ConfigurationError, match="cannot be read"):
        CaptureSource({"capturePlan": "/somewhere/plan.json"}).streamReader(SCHEMA)
    assert CaptureSource({}).schema() == EventHubsDataSource({}).schema()
