"""`/health` and `/ready`: alive or not, ready or what is not."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest
from starlette.requests import Request

from penstock.service.health import Checks, health_routes

NOBODY = cast(Request, None)  # neither looks at who asks


async def asked(
    *, trouble: str | None = None, checks: Checks | None = None, warnings: tuple[str, ...] = ()
) -> dict[str, tuple[int, dict[str, Any]]]:
    """Path -> status and body."""
    routes = health_routes(lambda: trouble, lambda: checks or {}, lambda: list(warnings))
    answers = {route.path: await route.endpoint(NOBODY) for route in routes}
    return {path: (each.status_code, json.loads(each.body)) for path, each in answers.items()}


async def test_service_that_runs_is_healthy() -> None:
    status, body = (await asked())["/health"]
    assert (status, body["status"]) == (200, "healthy")


async def test_service_that_stops_is_not_healthy_and_says_why() -> None:
    status, body = (await asked(trouble="It is stopping."))["/health"]
    assert (status, body) == (503, {"status": "unhealthy", "message": "It is stopping."})


async def test_service_is_ready_when_every_part_is_well_or_off() -> None:
    answer = await asked(checks={"log": "ok", "portal": "off"}, warnings=("too many units",))
    status, body = answer["/ready"]
    assert (status, body["status"]) == (200, "ready")
    assert body["warnings"] == ["too many units"]


@pytest.mark.parametrize("part", ["log", "doors"])
async def test_service_is_not_ready_and_says_what_is_not(part: str) -> None:
    checks = {"log": "ok", "doors": "ok"} | {part: "partition 2 of events: No space left"}
    answer = await asked(checks=checks)
    status, body = answer["/ready"]
    assert (status, body["status"]) == (503, "not ready")
    assert body["checks"] == checks
    assert answer["/health"][0] == 200  # alive all the same
