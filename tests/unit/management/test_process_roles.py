"""Roles of the service's own processes: the capture job and the portal do what they need only."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from tests.unit.management.conftest import hub_body, namespace_body
from tests.unit.management.test_operations import ACTS, CAPTURE, HUB, NS, ready

from penstock.capture.status import CaptureReport
from penstock.management import resources as arm
from penstock.management.operations import Operations
from penstock.management.operations.capture import CaptureRunsQuery
from penstock.management.permissions import Action, AdminRole, Forbidden, actor_of
from penstock.model.entities import Right
from penstock.model.errors import NotFound
from penstock.model.names import ROOT_RULE

if TYPE_CHECKING:
    from tests.unit.management.conftest import Caller, Plane

__all__ = ["ready"]
OTHER = "tailspin"
OWN = "/providers/Penstock"

# Every call of penstock.spark.capture.job, in the words of the operations.
JOB_CALLS: dict[str, Callable[[Operations], object]] = {
    "capture_runs": lambda o: o.captures.list_capture_runs(CaptureRunsQuery("this-job")),
    "namespaces": lambda o: o.namespaces.list(),
    "rules": lambda o: o.rules.list(NS),
    "keys": lambda o: o.rules.keys(NS, None, ROOT_RULE),
    "partitions": lambda o: o.activity.list_partitions(NS, HUB),
    "report_capture": lambda o: o.captures.report_capture(NS, HUB, CaptureReport(run="one")),
    "put_job": lambda o: o.activity.report_job("capture", arm.JobBody()),
}
CAPTURE_ACTIONS = {
    Action.NAMESPACE_READ,
    Action.HUB_READ,
    Action.RULE_READ,
    Action.KEYS_LIST,
    Action.JOB_REPORT,
    Action.CAPTURE_RUN,
}


@pytest.fixture
def two(ready: Plane) -> Plane:
    """A captured hub beside one that is not, and a namespace without Capture."""
    admin = ready.admin
    admin.hubs.put(NS, "plain", hub_body(partition_count=2))
    admin.rules.put(NS, "plain", "listener", Right.LISTEN)
    admin.namespaces.put(OTHER, namespace_body())
    admin.hubs.put(OTHER, HUB, hub_body(partition_count=2))
    return ready


def operations(plane: Plane, role: str) -> Operations:
    return Operations(plane.administration, actor_of("someone", (role,)))


@pytest.mark.parametrize("call", JOB_CALLS)
def test_capture_may_do_what_its_job_calls(two: Plane, call: str) -> None:
    JOB_CALLS[call](operations(two, "Capture"))


@pytest.mark.parametrize("action", [each for each in Action if each not in CAPTURE_ACTIONS])
def test_capture_may_do_nothing_else(two: Plane, action: Action) -> None:
    with pytest.raises(Forbidden, match="has the role Capture") as refused:
        ACTS[action](operations(two, "Capture"))
    assert str(action) in str(refused.value)


@pytest.mark.parametrize(
    ("call", "path"),
    [
        pytest.param(
            lambda o: o.rules.keys(NS, "plain", "listener"), "plain/listener", id="keys of a hub"
        ),
        pytest.param(
            lambda o: o.rules.keys(OTHER, None, ROOT_RULE), OTHER, id="keys of a namespace"
        ),
        pytest.param(lambda o: o.rules.list(OTHER), "", id="policies"),
        pytest.param(lambda o: o.activity.list_partitions(NS, "plain"), "", id="partitions"),
        pytest.param(lambda o: o.hubs.list(NS), "", id="all hubs"),
        pytest.param(
            lambda o: o.activity.report_job("pipeline", arm.JobBody()), "pipeline", id="a job"
        ),
    ],
)
def test_capture_reaches_only_what_is_captured(
    two: Plane, call: Callable[[Operations], object], path: str
) -> None:
    before = len(two.audit())
    with pytest.raises(Forbidden, match="has the role Capture"):
        call(operations(two, "Capture"))
    denied = [detail for _, _, detail in two.audit()[before:]]
    assert len(denied) == (1 if path else 0)
    assert all(detail.startswith("denied") and path in detail for detail in denied)


def test_keys_are_refused_when_the_last_run_has_ended(two: Plane) -> None:
    hub = two.catalog.hub(NS, HUB)
    assert hub is not None
    (run,) = hub.metadata["captureRuns"]
    capture = operations(two, "Capture")
    capture.rules.keys(NS, HUB, "listener")
    two.admin.hubs.put(NS, HUB, hub_body(capture=CAPTURE | {"enabled": False}))
    capture.rules.keys(NS, HUB, "listener")  # the run is over and not all of it is in files
    capture.captures.report_capture(NS, HUB, CaptureReport(run=run["id"], is_finished=True))
    with pytest.raises(Forbidden):
        capture.rules.keys(NS, HUB, "listener")
    with pytest.raises(Forbidden):
        capture.rules.keys(NS, None, ROOT_RULE)


def test_hub_that_was_deleted_is_not_found(two: Plane) -> None:
    capture = operations(two, "Capture")
    with pytest.raises(NotFound):
        capture.activity.list_partitions(NS, "gone")
    with pytest.raises(NotFound):
        capture.rules.list("gone")


def test_portal_may_ask_only_whose_token_it_is(two: Plane) -> None:
    portal = operations(two, "Portal")
    holder = portal.activity.show_token_holder(arm.TokenBody(token="known"))
    assert (holder.subject, holder.roles) == ("vera", ["Reader"])
    for action in Action:
        if action is not Action.TOKEN_READ:
            with pytest.raises(Forbidden, match="has the role Portal"):
                ACTS[action](portal)


@pytest.mark.parametrize("role", ["Capture", "Portal", "capture"])
def test_process_role_is_no_role_of_a_person(role: str) -> None:
    actor = actor_of("someone", (role,))
    assert actor.role is AdminRole.NOBODY
    assert actor.process is not None
    assert actor_of("someone", (role, "Reader")).process is None  # the higher one is meant


async def test_portal_acts_for_its_visitors_with_their_role(call: Caller) -> None:
    async def act(method: str, path: str, who: str, body: object = None) -> int:
        headers = {"x-penstock-on-behalf-of": who}
        answer = await call(method, path, body, token="portal-token", headers=headers)
        return answer.status

    assert await act("DELETE", f"{OWN}/connections/first", "operator alice") == 200
    assert call.plane.catalog.audit(newest=1)[0].who == "alice"
    assert await act("DELETE", f"{OWN}/connections/second", "viewer bob") == 403
    assert await act("DELETE", f"{OWN}/connections/second", "nonsense bob") == 403
    assert await act("GET", f"{OWN}/audit", "admin carol") == 200


@pytest.mark.parametrize("token", ["capture-token", "operator-token"])
async def test_only_the_portal_and_administrators_act_for_others(call: Caller, token: str) -> None:
    headers = {"x-penstock-on-behalf-of": "admin alice"}
    answer = await call("GET", f"{OWN}/audit", token=token, headers=headers)
    assert answer.status == 403


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "adminTokens", {"name": "eve", "role": "Owner", "lifetimeSeconds": 600}),
        ("PUT", f"revokedAdminTokens/{'a' * 32}", None),
        ("GET", "revokedAdminTokens", None),
        ("POST", "portal/signInLink", None),
    ],
)
async def test_the_portals_token_gives_nothing_that_outlives_it(
    call: Caller, method: str, path: str, body: object
) -> None:
    headers = {"x-penstock-on-behalf-of": "admin eve"}
    answer = await call(method, f"{OWN}/{path}", body, token="portal-token", headers=headers)
    assert answer.status == 403
    assert "through the portal" in answer.json["error"]["message"]
    assert call.plane.tokens.issued == []
    as_admin = await call(method, f"{OWN}/{path}", body, headers=headers)
    assert as_admin.status in (200, 201)
