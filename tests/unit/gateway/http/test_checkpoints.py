"""Leases and checkpoints over HTTPS: who may, what is refused, what is kept."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pytest

from penstock.gateway.http.checkpoints import CheckpointEndpoint
from penstock.model import limits
from penstock.model.checkpoints import Checkpoint, Claim, Ownership
from penstock.model.entities import ConsumerGroup, Right
from penstock.model.names import GroupName, HubName

if TYPE_CHECKING:
    from tests.unit.gateway.http.conftest import Response, World

OWNERSHIP = "/$penstock/checkpoints/events/$Default/ownership"
CHECKPOINTS = "/$penstock/checkpoints/events/$Default/checkpoints"
CLAIM = {"partition_id": "0", "owner_id": "me"}
SAVED = {"partition_id": "1", "offset": "100", "sequence_number": 7}


class Kept:
    """A keeper that takes everything and remembers by whom it was asked."""

    def __init__(self) -> None:
        self.claims: list[tuple[str, str, list[Claim]]] = []
        self.saved: list[tuple[str, str, list[Checkpoint]]] = []
        self.failing: Exception | None = None
        self.waits: asyncio.Event | None = None

    def ownerships(self, hub_id: str, group: str) -> list[Ownership]:
        return [Ownership(partition_id="0", owner_id="", etag="e1", modified_ms=5)]

    def checkpoints(self, hub_id: str, group: str) -> list[Checkpoint]:
        return [Checkpoint(partition_id="1", offset="9", sequence_number=3, modified_ms=5)]

    async def claim(self, hub_id: str, group: str, claims: Sequence[Claim]) -> list[Ownership]:
        await self._wait()
        self.claims.append((hub_id, group, list(claims)))
        return [
            Ownership(
                partition_id=each.partition_id, owner_id=each.owner_id, etag="e2", modified_ms=6
            )
            for each in claims
        ]

    async def save(self, hub_id: str, group: str, checkpoints: Sequence[Checkpoint]) -> None:
        await self._wait()
        self.saved.append((hub_id, group, list(checkpoints)))

    async def _wait(self) -> None:
        if self.failing is not None:
            raise self.failing
        if self.waits is not None:
            await self.waits.wait()


class Door:
    def __init__(self, world: World, **options: Any) -> None:
        self.world = world
        self.kept = Kept()
        self.app = CheckpointEndpoint(
            broker=world.broker,
            catalog=world.catalog,
            store=self.kept,
            clock=world.clock,
            authorities=world._authorities,
            new_id=lambda: "0" * 32,
            **options,
        )
        world.app = self.app  # type: ignore[assignment]  # another application of the same door

    async def get(self, path: str, **options: Any) -> Response:
        return await self.world.call(path, b"", method="GET", length=None, **options)

    async def post(self, path: str, content: Any, **options: Any) -> Response:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        return await self.world.call(path, body, **options)


@pytest.fixture
def door(world: World) -> Door:
    return Door(world)


async def test_ownerships_are_listed(door: Door) -> None:
    answer = await door.get(OWNERSHIP)
    assert answer.status == 200
    assert answer.headers["content-type"] == "application/json"
    owned = {"partition_id": "0", "owner_id": "", "etag": "e1", "modified_ms": 5}
    assert json.loads(answer.body) == {"ownerships": [owned]}


async def test_checkpoints_are_listed(door: Door) -> None:
    answer = await door.get(CHECKPOINTS)
    saved = {"partition_id": "1", "offset": "9", "sequence_number": 3, "modified_ms": 5}
    assert json.loads(answer.body) == {"checkpoints": [saved]}


async def test_claims_reach_the_keeper(door: Door) -> None:
    answer = await door.post(OWNERSHIP, {"claims": [CLAIM, CLAIM | {"etag": "e1"}]})
    assert answer.status == 200
    assert [each["etag"] for each in json.loads(answer.body)["ownerships"]] == ["e2", "e2"]
    (hub_id, group, claims) = door.kept.claims[0]
    assert (hub_id, group) == ("hub0", "$Default")
    assert [each.etag for each in claims] == [None, "e1"]


async def test_checkpoints_reach_the_keeper(door: Door) -> None:
    answer = await door.post(CHECKPOINTS, {"checkpoints": [SAVED]})
    assert (answer.status, answer.body) == (204, b"")
    (_, _, (saved,)) = door.kept.saved[0]
    assert (saved.partition_id, saved.offset, saved.sequence_number) == ("1", "100", 7)


async def test_names_may_hold_escaped_slashes_and_any_case(door: Door) -> None:
    door.world.catalog.put_group(
        ConsumerGroup(
            namespace=door.world.catalog.namespaces()[0].name,
            hub=HubName("plant/line"),
            name=GroupName("team/Readers"),
            created_ms=0,
            updated_ms=0,
        )
    )
    path = "/%24penstock/checkpoints/Plant%2FLine/TEAM%2freaders/Ownership/"
    token = door.world.token("https://contoso.example.net/plant/line")
    answer = await door.post(path, {"claims": [CLAIM]}, token=token)
    assert answer.status == 200
    assert door.kept.claims[0][:2] == ("hub1", "team/Readers")


async def test_the_listen_right_is_needed_and_enough(door: Door) -> None:
    listens = door.world.token(policy="Listener")
    assert (await door.get(OWNERSHIP, token=listens)).status == 200
    sends = door.world.token(policy="Sender")
    refused = await door.post(OWNERSHIP, {"claims": [CLAIM]}, token=sends)
    assert refused.status == 401
    assert "'Listen' claim(s) are required" in refused.detail
    assert (await door.get(OWNERSHIP, token=None)).status == 401
    assert (await door.get(OWNERSHIP, token="nonsense")).status == 401
    assert door.kept.claims == []


async def test_a_token_of_one_hub_is_none_of_another(door: Door) -> None:
    token = door.world.token("https://contoso.example.net/plant/line")
    assert (await door.get(OWNERSHIP, token=token)).status == 401


async def test_a_token_ends_with_its_key(door: Door) -> None:
    token = door.world.token(policy="Listener")
    assert (await door.get(OWNERSHIP, token=token)).status == 200
    door.world.put_rule("Listener", Right.LISTEN, key="another-key")
    assert (await door.get(OWNERSHIP, token=token)).status == 401
    door.app.close()


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/$penstock/checkpoints/nowhere/$Default/ownership", 404),
        ("/$penstock/checkpoints/events/nobody/ownership", 404),
        ("/$penstock/checkpoints/events/$Default/other", 404),
        ("/$penstock/checkpoints/events/ownership", 404),
        ("/$penstock/checkpoints/events/a/b/ownership", 404),
        ("/$penstock/checkpoints/", 404),
        ("/$penstock/checkpoints//$Default/ownership", 400),
        ("/$penstock/checkpoints/events//ownership", 400),
        ("/$penstock/checkpoints/%ff/$Default/ownership", 400),
        ("/$penstock/checkpoints/" + "a" * 300 + "/$Default/ownership", 400),
        ("/$penstock/checkpoints/" + "a" * 9000 + "/$Default/ownership", 400),
    ],
)
async def test_paths_that_lead_nowhere(door: Door, path: str, status: int) -> None:
    token = door.world.token("https://contoso.example.net/")
    assert (await door.get(path, token=token)).status == status


async def test_other_methods_are_refused(door: Door) -> None:
    answer = await door.world.call(OWNERSHIP, b"", method="DELETE")
    assert (answer.status, answer.headers["allow"]) == (405, "GET, POST")


NO_BODIES: list[tuple[str, Any]] = [
    (OWNERSHIP, b""),
    (OWNERSHIP, b"{"),
    (OWNERSHIP, b"[]"),
    (OWNERSHIP, b"\xff\xfe"),
    (OWNERSHIP, b"[" * 100_000),
    (OWNERSHIP, b'{"claims":' + b"[" * 100_000),
    (OWNERSHIP, {"claims": [{}]}),
    (OWNERSHIP, {"claims": [CLAIM | {"owner_id": 5}]}),
    (OWNERSHIP, {"claims": [CLAIM | {"owner_id": "x" * 513}]}),
    (OWNERSHIP, {"claims": [CLAIM | {"owner_id": "a\0b"}]}),
    (OWNERSHIP, {"claims": [CLAIM | {"etag": ""}]}),
    (OWNERSHIP, {"claims": [CLAIM | {"partition_id": "4"}]}),
    (OWNERSHIP, {"claims": [CLAIM | {"partition_id": "00"}]}),
    (OWNERSHIP, {"claims": [CLAIM] * 1025}),
    (CHECKPOINTS, {"checkpoints": [SAVED | {"sequence_number": 2**63}]}),
    (CHECKPOINTS, {"checkpoints": [SAVED | {"sequence_number": -2}]}),
    (CHECKPOINTS, {"checkpoints": [SAVED | {"sequence_number": 1.5}]}),
    (CHECKPOINTS, {"checkpoints": [SAVED | {"offset": ""}]}),
    (CHECKPOINTS, {"checkpoints": [SAVED | {"offset": None}]}),
    (CHECKPOINTS, {"checkpoints": [SAVED | {"partition_id": "-1"}]}),
    (CHECKPOINTS, {"checkpoints": [SAVED] * 1025}),
]


@pytest.mark.parametrize(("path", "content"), NO_BODIES)
async def test_bodies_that_are_refused(door: Door, path: str, content: Any) -> None:
    answer = await door.post(path, content)
    assert answer.status == 400, answer.body
    assert answer.detail
    assert (door.kept.claims, door.kept.saved) == ([], [])


async def test_a_body_that_is_too_large_is_refused_unread(door: Door) -> None:
    size = str(limits.CHECKPOINT_BODY_BYTES_MAX + 1)
    assert (await door.world.call(OWNERSHIP, b"", length=size)).status == 413
    chunk = b"x" * 600_000
    assert (await door.world.call(OWNERSHIP, [chunk, chunk, chunk])).status == 413


async def test_bodies_on_their_way_are_bounded(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CHECKPOINT_HELD_BYTES_MAX", 10)
    answer = await door.post(OWNERSHIP, {"claims": [CLAIM]})
    assert (answer.status, answer.headers["retry-after"]) == (503, "4")
    monkeypatch.undo()
    assert (await door.post(OWNERSHIP, {"claims": [CLAIM]})).status == 200


async def test_a_group_that_is_deleted_while_the_body_comes_gets_no_checkpoint(
    door: Door,
) -> None:
    namespace = door.world.catalog.namespaces()[0].name
    door.world.catalog.put_group(
        ConsumerGroup(
            namespace=namespace,
            hub=HubName("events"),
            name=GroupName("readers"),
            created_ms=0,
            updated_ms=0,
        )
    )
    answer = await door.post(
        CHECKPOINTS.replace("$Default", "readers"),
        {"checkpoints": [SAVED]},
        meanwhile=lambda: door.world.catalog.delete_group(namespace, "events", "readers"),
    )
    assert answer.status == 404
    assert door.kept.saved == []


async def test_a_disk_that_takes_too_long_is_told(world: World) -> None:
    door = Door(world, deadline_s=0.01)
    door.kept.waits = asyncio.Event()
    answer = await door.post(CHECKPOINTS, {"checkpoints": [SAVED]})
    assert answer.status == 408


async def test_a_fault_of_ours_is_answered_without_its_reason(
    door: Door, caplog: pytest.LogCaptureFixture
) -> None:
    door.kept.failing = RuntimeError("the inside story")
    answer = await door.post(CHECKPOINTS, {"checkpoints": [SAVED]})
    assert answer.status == 500
    assert "inside story" not in answer.detail
    assert "inside story" in caplog.text


async def test_a_client_that_leaves_is_not_answered(door: Door) -> None:
    answer = await door.world.call(OWNERSHIP, [b"{"], leaves=True)
    assert answer.status == 0


async def test_refusal_is_logged_with_hub_group_and_id(
    door: Door, caplog: pytest.LogCaptureFixture
) -> None:
    token = door.world.token("https://contoso.example.net/")
    answer = await door.get("/$penstock/checkpoints/nope/readers/ownership", token=token)
    assert answer.status == 404
    (line,) = [each.getMessage() for each in caplog.records if each.name == "penstock.refusals"]
    assert f"hub=nope group=readers policy=Root peer=127.0.0.1:4711 id={'0' * 32} " in line
