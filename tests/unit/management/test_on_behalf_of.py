"""The portal acts in its visitors' names: with their role at most, and named in the audit log."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.unit.management.conftest import Caller

OWN = "/providers/Penstock"
HUB = f"{OWN}/namespaces/contoso/eventhubs/orders"


async def _kill(call: Caller, who: str, token: str = "admin-token") -> int:
    headers = {"x-penstock-on-behalf-of": who}
    answer = await call("DELETE", f"{OWN}/connections/first", token=token, headers=headers)
    return answer.status


async def test_act_is_recorded_with_the_visitors_name(call: Caller) -> None:
    assert await _kill(call, "operator al%20ice%0A") == 200
    entry = call.plane.catalog.audit(newest=1)[0]
    assert (entry.who, entry.what) == ("al ice", "connections/delete")


async def test_visitor_has_their_own_role_at_most(call: Caller) -> None:
    assert await _kill(call, "viewer bob") == 403
    assert await _kill(call, "nonsense bob") == 403
    entry = call.plane.catalog.audit(newest=1)[0]
    assert entry.who == "bob"
    assert entry.detail.startswith("denied")


@pytest.mark.parametrize("token", ["operator-token", "viewer-token"])
async def test_nobody_but_an_administrator_acts_for_others(call: Caller, token: str) -> None:
    assert await _kill(call, "operator alice", token) == 403


@pytest.mark.parametrize("who", ["admin", "admin ", " admin"])
async def test_somebody_without_a_name_is_refused(call: Caller, who: str) -> None:
    assert await _kill(call, who) in (403,)
