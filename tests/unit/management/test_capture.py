"""Capture as the management room knows it: runs, states, backlog, reports."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from tests.unit.management.conftest import hub_body

from penstock.capture.destinations import Destination
from penstock.capture.runs import RUNS_MAX
from penstock.capture.status import CaptureReport, CaptureState, RecentFile
from penstock.management.capture_registry import (
    CLAIM_MS,
    SILENT_MS,
    STARTING_MS,
    CaptureRegistry,
)
from penstock.management.operations.capture import BackfillRequest, CaptureRunsQuery
from penstock.model.capture import RunProgress
from penstock.model.errors import AlreadyExists, ArgumentError, NotAllowed

if TYPE_CHECKING:
    from tests.unit.management.conftest import Plane

    from penstock.capture.status import CaptureStatus

NS, HUB = "contoso", "orders"
NAMES = ("store", "elsewhere", "never", "other", "third")
ACCOUNT = "/subscriptions/1/resourceGroups/g/providers/Microsoft.Storage/storageAccounts"


def capture(enabled: bool = True, account: str = "store") -> dict[str, Any]:
    properties = {"storageAccountResourceId": account, "blobContainer": "box"}
    return {"enabled": enabled, "destination": {"properties": properties}}


@pytest.fixture
def plane(full: Plane) -> Plane:
    registry = full.administration.captures
    registry.destinations = [
        Destination(
            name=name, url="abfs://", options={"account_name": "a", "account_key": "secret"}
        )
        for name in NAMES
    ]
    return full


def switch(plane: Plane, enabled: bool = True, account: str = "store") -> None:
    plane.admin.hubs.put(NS, HUB, hub_body(capture=capture(enabled, account)))


def status(plane: Plane) -> CaptureStatus:
    (found,) = plane.admin.captures.list_captures()
    return found


def run_ids(plane: Plane) -> list[str]:
    return [each.run.id for each in plane.admin.captures.list_capture_runs(CaptureRunsQuery())]


def test_switching_on_makes_a_run_and_off_ends_it(plane: Plane) -> None:
    assert plane.admin.captures.list_captures() == []
    switch(plane)
    (made,) = plane.admin.captures.list_capture_runs(CaptureRunsQuery())
    assert made.run.on_ms == plane.clock.now_ms() and not made.run.is_over
    switch(plane)  # the same again is no new run
    assert run_ids(plane) == [made.run.id]
    plane.clock.advance(1000)
    switch(plane, enabled=False)
    (ended,) = plane.admin.captures.list_capture_runs(CaptureRunsQuery())
    assert ended.run.is_over and ended.run.off_ms == plane.clock.now_ms()
    switch(plane)
    assert len(run_ids(plane)) == 2


def test_a_run_that_is_over_is_forgotten_when_its_job_is_done(plane: Plane) -> None:
    switch(plane)
    (one,) = run_ids(plane)
    plane.admin.captures.report_capture(NS, HUB, CaptureReport(run=one, is_finished=True))
    assert run_ids(plane) == [one]  # it goes on
    switch(plane, enabled=False)
    plane.admin.captures.report_capture(NS, HUB, CaptureReport(run=one, is_finished=True))
    assert run_ids(plane) == []
    assert status(plane).state is CaptureState.OFF
    hub = plane.catalog.hub(NS, HUB)
    assert hub is not None and hub.capture.runs == []


def test_what_a_run_wrote_is_told_when_it_is_done(plane: Plane) -> None:
    for files in (3, 4):
        switch(plane)
        (one,) = run_ids(plane)
        switch(plane, enabled=False)
        report = CaptureReport(
            run=one, files=files, events=10, last_file=f"file:///{files}.avro", last_file_ms=files
        )
        plane.admin.captures.report_capture(
            NS, HUB, msgspec.structs.replace(report, is_finished=True)
        )
    found = status(plane)
    assert (found.files, found.events, found.last_file) == (7, 20, "file:///4.avro")
    assert found.past.files == 7


def test_switched_off_by_one_word_it_goes_where_it_went(plane: Plane) -> None:
    """As who uses the SDK may write it: CaptureDescription(enabled=False)."""
    switch(plane)
    (made,) = plane.admin.captures.list_capture_runs(CaptureRunsQuery())
    plane.admin.hubs.put(NS, HUB, hub_body(capture={"enabled": False}))
    (over,) = plane.admin.captures.list_capture_runs(CaptureRunsQuery())
    assert over.run.is_over and over.description == made.description
    assert status(plane).state is not CaptureState.FAILED
    assert [each.account for each in status(plane).places] == ["store"]
    hub = plane.catalog.hub(NS, HUB)
    assert hub is not None and hub.metadata["capture"]["destination"]["properties"]["blobContainer"]


def test_what_is_not_written_yet_goes_where_it_should_have_gone(plane: Plane) -> None:
    switch(plane)
    switch(plane, enabled=False)
    switch(plane, account="elsewhere")
    over, goes_on = plane.admin.captures.list_capture_runs(CaptureRunsQuery())
    properties = [each.description["destination"]["properties"] for each in (over, goes_on)]
    assert [each["storageAccountResourceId"] for each in properties] == ["store", "elsewhere"]


def test_how_far_a_run_is_outlives_the_service(plane: Plane) -> None:
    switch(plane)
    (one,) = run_ids(plane)
    # Written down at once, and then not at every word.
    for sequence, kept, after_ms in ((7, 7, 0), (8, 7, 5_000), (9, 9, 10_000)):
        plane.clock.advance(after_ms)
        reached = {"0": RunProgress(sequence, 1_000, 2, 1)}
        report = CaptureReport(run=one, captured={"0": sequence}, reached=reached)
        plane.admin.captures.report_capture(NS, HUB, report)
        (told,) = plane.admin.captures.list_capture_runs(CaptureRunsQuery())
        assert told.captured["0"] == sequence
        hub = plane.catalog.hub(NS, HUB)
        assert hub is not None
        (run,) = hub.capture.runs
        assert run.reached["0"].sequence == kept
        assert CaptureRegistry().captured_positions(hub, run)["0"] == kept


def test_too_many_runs_that_wait_are_refused(plane: Plane) -> None:
    for _ in range(RUNS_MAX):
        switch(plane)
        switch(plane, enabled=False)
    with pytest.raises(NotAllowed, match="64 times"):
        switch(plane)


def test_where_files_were_put_before_is_kept_in_mind(plane: Plane) -> None:
    switch(plane, enabled=False)
    switch(plane, enabled=False, account="never")  # nothing was captured there
    switch(plane)
    switch(plane, account="other")
    switch(plane)
    switch(plane, account="third")
    assert [each.account for each in status(plane).places] == ["third", "store", "other"]


def test_a_run_that_waits_speaks_for_all(plane: Plane) -> None:
    switch(plane)
    (one,) = run_ids(plane)
    switch(plane, enabled=False)
    switch(plane)
    _, two = run_ids(plane)
    away = CaptureReport(run=one, state=CaptureState.WAITING, last_error="storage is away", files=1)
    plane.admin.captures.report_capture(NS, HUB, away)
    plane.admin.captures.report_capture(NS, HUB, CaptureReport(run=two, last_file="file:///2.avro"))
    found = status(plane)
    assert (found.state, found.last_error) == (CaptureState.WAITING, "storage is away")
    assert (found.files, found.last_file) == (1, "file:///2.avro")


def test_state_is_what_the_job_says_as_long_as_it_does(plane: Plane) -> None:
    switch(plane)
    assert status(plane).state is CaptureState.STARTING
    plane.clock.advance(STARTING_MS)
    assert status(plane).state is CaptureState.WAITING
    (one,) = run_ids(plane)
    recent = [RecentFile("file:///x.avro", 1, 2, 3)]
    plane.admin.captures.report_capture(
        NS, HUB, CaptureReport(run=one, files=3, recent_files=recent)
    )
    assert (status(plane).state, status(plane).files) == (CaptureState.RUNNING, 3)
    assert status(plane).recent_files == recent
    away = CaptureReport(run=one, state=CaptureState.WAITING, last_error="storage is away")
    plane.admin.captures.report_capture(NS, HUB, away)
    assert status(plane).last_error == "storage is away"
    recovered = msgspec.structs.replace(away, state=CaptureState.RUNNING)
    plane.admin.captures.report_capture(NS, HUB, recovered)
    assert (status(plane).state, status(plane).last_error) == (CaptureState.RUNNING, "")
    plane.clock.advance(SILENT_MS)
    found = status(plane)
    assert found.state is CaptureState.WAITING and "60 s" in found.last_error
    assert found.warning_text is not None


@pytest.mark.parametrize(
    ("account", "container", "text"),
    [
        (f"{ACCOUNT}/nosuch", "box", "'nosuch' is not configured. Configured: store, elsewhere"),
        ("http://169.254.169.254/", "box", "'169.254.169.254' is not configured"),
        ("store", "../x", "'../x' leads out"),
        ("store", "a//b", "'a//b' leads out"),
    ],
)
@pytest.mark.parametrize("enabled", [True, False])
def test_unusable_destination_is_refused_when_it_is_configured(
    plane: Plane, account: str, container: str, text: str, enabled: bool
) -> None:
    before = plane.catalog.hub(NS, HUB)
    description = capture(enabled, account)
    description["destination"]["properties"]["blobContainer"] = container
    with pytest.raises(ArgumentError, match=re.escape(text)):
        plane.admin.hubs.put(NS, HUB, hub_body(capture=description))
    assert plane.catalog.hub(NS, HUB) == before


def test_destination_is_named_by_its_name_or_an_id_that_ends_in_it(plane: Plane) -> None:
    switch(plane, account=f"{ACCOUNT}/STORE")
    assert status(plane).destination == "abfs://box"


def test_stored_destination_may_stay_when_the_configuration_lost_it(plane: Plane) -> None:
    switch(plane)
    plane.administration.captures.destinations = []
    plane.admin.hubs.put(NS, HUB, hub_body(user_metadata="x", capture=capture()))
    found = status(plane)
    assert found.state is CaptureState.FAILED
    assert "'store' is not configured" in found.last_error
    switch(plane, enabled=False)
    with pytest.raises(ArgumentError, match="'store' is not configured"):
        switch(plane)


def test_no_answer_holds_a_credential(plane: Plane) -> None:
    switch(plane)
    told = repr(
        (
            plane.admin.captures.list_captures(),
            plane.admin.captures.list_capture_destinations(),
            run_ids(plane),
        )
    ) + repr(plane.administration.captures.destinations)
    assert "secret" not in told
    assert {each.url for each in plane.admin.captures.list_capture_destinations()} == {"abfs://"}


def test_backlog_counts_what_is_in_no_file(plane: Plane) -> None:
    switch(plane)
    hub = plane.catalog.hub(NS, HUB)
    assert hub is not None
    registry, now_ms = plane.administration.captures, plane.clock.now_ms()
    assert registry.status(hub, {"0": 5, "1": 7}, now_ms=now_ms).backlog_events == 12
    (one,) = run_ids(plane)
    plane.admin.captures.report_capture(
        NS, HUB, CaptureReport(run=one, captured={"0": 5, "1": 3}, backlog_seconds=9.0)
    )
    found = registry.status(hub, {"0": 5, "1": 7}, now_ms=now_ms)
    assert (found.backlog_events, found.backlog_seconds) == (4, 9.0)
    assert found.warning_text is None


def test_it_warns_before_retention_wins(plane: Plane) -> None:
    switch(plane)
    hub = plane.catalog.hub(NS, HUB)
    assert hub is not None
    (one,) = run_ids(plane)
    seconds = hub.retention_hours * 3600 * 0.6
    report = CaptureReport(run=one, captured={"0": 1}, backlog_seconds=seconds)
    plane.admin.captures.report_capture(NS, HUB, report)
    ends = {"0": 7}
    found = plane.administration.captures.status(hub, ends, now_ms=plane.clock.now_ms())
    assert found.warning_text is not None and "retention begins to drop" in found.warning_text


def test_it_warns_of_retention_also_when_no_job_tells_anything(plane: Plane) -> None:
    switch(plane)
    hub = plane.catalog.hub(NS, HUB)
    assert hub is not None
    registry, hour_ms = plane.administration.captures, 3_600_000
    ends = {"0": 7}
    registry.status(hub, ends, now_ms=plane.clock.now_ms())
    plane.clock.advance(hub.retention_hours * hour_ms * 6 // 10)
    found = registry.status(hub, ends, now_ms=plane.clock.now_ms())
    assert found.warning_text is not None
    assert (
        "is waiting: No capture job" in found.warning_text
        and "retention begins" in found.warning_text
    )
    (one,) = run_ids(plane)
    report = CaptureReport(run=one, captured={"0": 1}, backlog_seconds=5.0)
    plane.admin.captures.report_capture(NS, HUB, report)
    now_ms = plane.clock.now_ms()
    assert registry.status(hub, ends, now_ms=now_ms).backlog_seconds == 5.0
    late = registry.status(hub, ends, now_ms=now_ms + SILENT_MS)
    assert late.backlog_seconds == 5.0 + SILENT_MS / 1000


def test_after_a_restart_the_job_has_time_to_come(plane: Plane) -> None:
    switch(plane)
    plane.clock.advance(STARTING_MS * 10)
    hub = plane.catalog.hub(NS, HUB)
    assert hub is not None
    anew = CaptureRegistry(plane.administration.captures.destinations)
    now_ms = plane.clock.now_ms()
    found = anew.status(hub, {"0": 7}, now_ms=now_ms)
    assert (found.state, found.warning_text) == (CaptureState.STARTING, None)
    late = anew.status(hub, {"0": 7}, now_ms=now_ms + STARTING_MS)
    assert late.state is CaptureState.WAITING


def test_backfill_needs_capture_to_be_on(plane: Plane) -> None:
    with pytest.raises(NotAllowed, match="is off"):
        asyncio.run(
            plane.admin.captures.backfill_capture(NS, HUB, BackfillRequest(since="earliest"))
        )
    switch(plane)
    counts = asyncio.run(plane.admin.captures.backfill_capture(NS, HUB, BackfillRequest()))
    assert {count["events"] for count in counts} == {0}
    with pytest.raises(ArgumentError):
        asyncio.run(
            plane.admin.captures.backfill_capture(NS, HUB, BackfillRequest(since="yesterday"))
        )


def test_one_job_at_a_time_and_the_next_when_it_is_silent(plane: Plane) -> None:
    switch(plane)
    captures = plane.admin.captures
    assert (
        len(captures.list_capture_runs(CaptureRunsQuery("one")))
        == len(captures.list_capture_runs(CaptureRunsQuery("one")))
        == len(captures.list_capture_runs(CaptureRunsQuery()))
        == 1
    )
    with pytest.raises(AlreadyExists, match="one"):
        captures.list_capture_runs(CaptureRunsQuery("two"))
    plane.clock.advance(CLAIM_MS)
    assert len(captures.list_capture_runs(CaptureRunsQuery("two"))) == 1


def test_reports_are_bounded(plane: Plane) -> None:
    switch(plane)
    with pytest.raises(ArgumentError):
        plane.admin.captures.report_capture(NS, HUB, CaptureReport(run="x", last_error="e" * 5000))
