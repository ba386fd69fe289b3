"""@azure/event-hubs against Penstock. The cases are in node/cases.mjs; all run in one process."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.compatibility.conftest import Takings
    from tests.conftest import Azurite, NodeTools, Server

NODE = Path(__file__).parent / "node"
CASES = re.findall(
    r"^  (\w+): ", (NODE / "cases.mjs").read_text().partition("await run({")[2], re.M
)
WITH_AZURITE = "blob_checkpoints_are_resumed"
DEADLINE_S = 110


@pytest.fixture(scope="module")
def outcomes(
    node: NodeTools, server: Server, takings: Takings, azurite: Azurite
) -> dict[str, str | None]:
    world = {
        "plain": server.connection_string(),
        "tls": server.connection_string(tls=True),
        "listener": server.connection_string(policy="listener", key="key-that-only-listens"),
        "sender": server.connection_string(policy="sender", key="key-that-only-sends"),
        "amqpsPort": server.port("amqps"),
        "httpsPort": server.port("https"),
        "hubs": [takings.hub() for _ in range(8)],
        "spots": [takings.spot() for _ in range(len(CASES) + 4)],
        "azurite": azurite.connection_string,
    }
    ended = subprocess.run(
        [node.node, str(NODE / "cases.mjs")],
        input=json.dumps(world),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        env=node.environ | {"NODE_EXTRA_CA_CERTS": server["ca_file"]},
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
    outcomes: dict[str, str | None] = json.loads(ended.stdout.splitlines()[-1])
    return outcomes


@pytest.mark.parametrize("case", CASES)
def test_javascript(case: str, outcomes: dict[str, str | None], azurite: Azurite) -> None:
    assert outcomes[case] is None, outcomes[case]


def test_every_case_of_the_script_is_a_test() -> None:
    assert len(CASES) == len(set(CASES)) > 20
