"""The pipelines in examples/pipelines, each on real events of a real broker, its result exact."""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.spark.conftest import MakeHub, TestHub
    from tests.spark.pipelines.conftest import Pipelines

EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "pipelines"
NOON = datetime(2026, 11, 16, 12, 0, 0, tzinfo=UTC)


def at(seconds: float) -> str:
    return (NOON + timedelta(seconds=seconds)).isoformat().replace("+00:00", "Z")


def reading(device: str, seconds: float, temperature: float, **more: object) -> str:
    body = {
        "id": str(uuid.uuid4()),
        "device": device,
        "time": at(seconds),
        "temperature": temperature,
        "humidity": 40.0,
    }
    return json.dumps(body | more)


def sent(hub: TestHub, bodies: Iterable[str]) -> None:
    """Each device's readings with its key, as devices send them."""
    by_device: dict[str, list[str]] = {}
    for body in bodies:
        by_device.setdefault(json.loads(body)["device"], []).append(body)
    for device, its_own in by_device.items():
        hub.send(its_own, partition_key=device)


def arrived(hub: TestHub) -> list[dict[str, Any]]:
    return [json.loads(body) for bodies in hub.read().values() for body in bodies]


def test_windows_count_each_reading_and_leave_out_the_very_late(
    pipelines: Pipelines, make_hub: MakeHub
) -> None:
    hub, out = make_hub(2), make_hub(2)
    sent(hub, [reading("a", second, 20 + second) for second in (0, 1, 9, 10, 11, 19)])
    sent(hub, [reading("b", 5, 7.5)])
    # Two batches: the watermark of the second is what the first one saw.
    pipelines.run("windows", hub=hub.name, into=out.name)
    sent(hub, [reading("a", 60, 30), reading("a", 2, 99)])
    shot = pipelines.run("windows", hub=hub.name, into=out.name)
    found = {(row["device"], row["from"]): row for row in arrived(out)}
    assert len(found) == len(arrived(out)), "a window goes out once"
    first = found["a", "2026-11-16T12:00:00.000Z"]
    # The reading at 2 s came when the watermark stood at 9 s: its window was still open.
    assert first["readings"] == 4
    assert (first["lowest"], first["highest"]) == (20, 99)
    assert found["a", "2026-11-16T12:00:10.000Z"]["average"] == 33.33
    assert found["b", "2026-11-16T12:00:00.000Z"]["readings"] == 1
    assert len(found) == 3, "the window of 60 s is open still"
    sent(hub, [reading("a", 3, 99)])
    late = pipelines.run("windows", hub=hub.name, into=out.name)
    assert (shot.queries[0].late_rows, late.queries[0].late_rows) == (0, 1)
    assert len(arrived(out)) == 3


def test_windows_are_shown_as_they_change(pipelines: Pipelines, make_hub: MakeHub) -> None:
    hub = make_hub(2)
    sent(hub, [reading("a", second, 20) for second in range(15)])
    shot = pipelines.run("windows", hub=hub.name)
    shown = {row["from"]: row["readings"] for row in pipelines.onlooker.shown}
    assert shown == {"2026-11-16T12:00:00.000Z": 10, "2026-11-16T12:00:10.000Z": 5}
    (query,) = shot.queries
    assert (query.name, query.rows, query.state) == ("windows", 15, "Stopped")
    assert query.last is not None
    assert (query.last.lag_events, query.last.state_rows) == (0, 2)


def test_deduplicate_passes_each_id_once_over_restarts(
    pipelines: Pipelines, make_hub: MakeHub
) -> None:
    hub, out = make_hub(2), make_hub(2)
    bodies = [reading(f"device-{number % 3}", number, 20) for number in range(30)]
    sent(hub, bodies + bodies[:10])
    pipelines.run("deduplicate", hub=hub.name, into=out.name)
    sent(hub, bodies[5:15])
    pipelines.run("deduplicate", hub=hub.name, into=out.name)
    ids = Counter(row["id"] for row in arrived(out))
    assert ids == Counter(json.loads(body)["id"] for body in bodies)


def test_static_join_places_devices_and_keeps_the_unknown(
    pipelines: Pipelines, make_hub: MakeHub
) -> None:
    hub, out = make_hub(2), make_hub(2)
    sent(hub, [reading("device-01", 1, 20), reading("device-77", 2, 21)])
    pipelines.run("static_join", hub=hub.name, into=out.name)
    placed = {row["device"]: (row.get("room"), row.get("floor")) for row in arrived(out)}
    assert placed == {"device-01": ("Kitchen", 1), "device-77": (None, None)}


def test_stream_join_matches_two_hubs_and_lets_the_unanswered_go(
    pipelines: Pipelines, make_hub: MakeHub
) -> None:
    commands, answers, out = make_hub(2), make_hub(2), make_hub(2)

    def command(name: str, seconds: float) -> str:
        return json.dumps(
            {"command": name, "device": f"d-{name}", "action": "restart", "time": at(seconds)}
        )

    def answer(name: str, seconds: float) -> str:
        return json.dumps({"command": name, "outcome": "done", "time": at(seconds)})

    names = {"commands": commands.name, "answers": answers.name, "into": out.name}
    commands.send([command("quick", 0), command("slow", 1), command("never", 2)])
    answers.send([answer("quick", 2), answer("slow", 100)])
    pipelines.run("stream_join", **names)
    assert [(row["command"], row["took_ms"]) for row in arrived(out)] == [("quick", 2000)]
    # Time goes on in both hubs: nobody can answer the two others within their 30 s any more.
    commands.send([command("later", 200)])
    answers.send([answer("other", 200)])
    pipelines.run("stream_join", **names)
    outcomes = {row["command"]: row.get("outcome") for row in arrived(out)}
    assert outcomes == {"quick": "done", "slow": None, "never": None}
    assert len(arrived(out)) == 3


def test_enrich_goes_from_hub_to_hub_with_key_and_properties(
    pipelines: Pipelines, make_hub: MakeHub, spark: Any
) -> None:
    hub, out = make_hub(2), make_hub(2)
    bodies = [reading("a", number, number) for number in range(40)]
    hub.send(bodies, partition_key="a", properties={"model": "mk1", "count": 5})
    hub.send(["no json"])
    pipelines.run("enrich", hub=hub.name, into=out.name, hot="30")
    rows = spark.read.format("eventhubs").options(**out.options).load().collect()
    found = [json.loads(row.body) for row in sorted(rows, key=lambda row: row.sequenceNumber)]
    assert [each["temperature"] for each in found] == list(range(40)), "order is kept"
    assert found[30]["level"] == "hot" and found[29]["level"] == "normal"
    assert found[10]["fahrenheit"] == 50
    assert {row.partitionKey for row in rows} == {"a"}
    assert {row.properties["model"] for row in rows} == {'"mk1"'}
    assert len({row.properties["from"] for row in rows}) == 40


def test_bad_records_go_aside_with_their_reason_and_bytes(
    pipelines: Pipelines, make_hub: MakeHub, spark: Any
) -> None:
    hub, good, bad = make_hub(2), make_hub(2), make_hub(2)
    wrong = {
        b'{"device": "a", "temp': "no JSON of a reading",
        b"\xff\xfe\x00": "no JSON of a reading",
        reading("a", 1, 900).encode(): "temperature out of range",
        json.dumps({"time": at(1), "temperature": 1}).encode(): "no device",
        json.dumps({"device": "a", "temperature": 1}).encode(): "no time",
        json.dumps({"device": "a", "time": at(1)}).encode(): "no temperature",
    }
    right = [reading("a", number, 20) for number in range(10)]
    hub.send([*wrong, *right])
    shot = pipelines.run("bad_records", hub=hub.name, into=good.name, bad=bad.name)
    assert sorted(query.name for query in shot.queries) == ["good", "rejected"]
    assert len(arrived(good)) == 10
    rejected = spark.read.format("eventhubs").options(**bad.options).load().collect()
    assert {bytes(row.body): json.loads(row.properties["reason"]) for row in rejected} == wrong
    assert all("/" in row.properties["from"] for row in rejected)


def test_sessions_grow_merge_and_go_out_once(pipelines: Pipelines, make_hub: MakeHub) -> None:
    hub, out = make_hub(2), make_hub(2)
    names = {"hub": hub.name, "into": out.name, "late": "60 seconds"}
    sent(hub, [reading("a", second, 20) for second in (0, 10, 50, 60)])
    sent(hub, [reading("b", 0, 10)])
    pipelines.run("sessions", **names)
    assert arrived(out) == []
    # 30 s lies within the gap of both of a's sessions: they were one all the time.
    sent(hub, [reading("a", 30, 20), reading("a", 500, 20)])
    pipelines.run("sessions", **names)
    found = {row["device"]: row for row in arrived(out)}
    assert len(arrived(out)) == 2
    assert (found["a"]["readings"], found["a"]["seconds"]) == (5, 60)
    assert (found["b"]["readings"], found["b"]["seconds"]) == (1, 0)


def test_every_example_is_run() -> None:
    here = Path(__file__).read_text()
    names = [file.stem for file in EXAMPLES.glob("*.py") if "def pipeline(" in file.read_text()]
    assert len(names) == 7
    assert [name for name in names if f'pipelines.run("{name}"' not in here] == []
