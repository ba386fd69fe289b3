"""azeventhubs, the Go SDK. The cases are in go/main.go; all run in one process."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.compatibility.conftest import Takings
    from tests.conftest import Server

MAIN = Path(__file__).parent / "go" / "main.go"
CASES = re.findall(r'^\t\t"(\w+)": +\w', MAIN.read_text().partition("cases := map")[2], re.M)
DEADLINE_S = 110


@pytest.fixture(scope="module")
def outcomes(go_program: Path, server: Server, takings: Takings) -> dict[str, str | None]:
    world = {
        "Plain": server.connection_string(),
        "TLS": server.connection_string(tls=True),
        "Wrong": server.connection_string(key="wrong"),
        "Listener": server.connection_string(policy="listener", key="key-that-only-listens"),
        "HTTPSPort": server.port("https"),
        "CAFile": server["ca_file"],
        "Hubs": [takings.hub() for _ in range(2)],
        "Spots": [takings.spot() for _ in CASES],
    }
    ended = subprocess.run(
        [str(go_program)],
        input=json.dumps(world),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
    outcomes: dict[str, str | None] = json.loads(ended.stdout)
    return outcomes


@pytest.mark.parametrize("case", CASES)
def test_go(case: str, outcomes: dict[str, str | None]) -> None:
    assert outcomes[case] is None, outcomes[case]


def test_every_case_of_the_program_is_a_test() -> None:
    assert len(CASES) == len(set(CASES)) >= 10
