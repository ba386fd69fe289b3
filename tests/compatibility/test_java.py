"""azure-messaging-eventhubs, the Java SDK; the cases are in java/Compatibility.java."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.compatibility.conftest import Takings
    from tests.conftest import Server

SOURCE = Path(__file__).parent / "java" / "Compatibility.java"
CASES = re.findall(r'cases\.put\("(\w+)"', SOURCE.read_text())
DEADLINE_S = 280
PASSWORD = "not-a-secret"


@pytest.fixture(scope="module")
def trust_store(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The development CA as Java wants it."""
    store = tmp_path_factory.mktemp("java") / "trust.p12"
    keytool = shutil.which("keytool")
    if keytool is None:
        pytest.skip("Java's keytool is not installed")
    flags = ["-noprompt", "-alias", "penstock", "-storetype", "PKCS12", "-storepass", PASSWORD]
    where = ["-file", server["ca_file"], "-keystore", str(store)]
    subprocess.run([keytool, "-importcert", *flags, *where], check=True, capture_output=True)
    return store


@pytest.fixture(scope="module")
def outcomes(
    java_command: list[str], trust_store: Path, server: Server, takings: Takings
) -> dict[str, str]:
    world = {
        "plain": server.connection_string(),
        "secure": server.connection_string(tls=True),
        "wrong": server.connection_string(key="wrong"),
        "listener": server.connection_string(policy="listener", key="key-that-only-listens"),
        "amqpsPort": str(server.port("amqps")),
        "httpsPort": str(server.port("https")),
    }
    lines = [f"{name}={value}" for name, value in world.items()]
    lines += [f"hub={takings.hub()}" for _ in range(3)]
    lines += [f"spot={' '.join(takings.spot())}" for _ in CASES]
    trust = [f"-Djavax.net.ssl.trustStore={trust_store}"]
    trust += [f"-Djavax.net.ssl.trustStorePassword={PASSWORD}"]
    ended = subprocess.run(
        [java_command[0], *trust, *java_command[1:]],
        input="\n".join(lines),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
    found = (line.split("\t", 1) for line in ended.stdout.splitlines() if "\t" in line)
    return dict((name, failure) for name, failure in found)


@pytest.mark.parametrize("case", CASES)
def test_java(case: str, outcomes: dict[str, str]) -> None:
    assert outcomes[case] == "", outcomes[case]


def test_every_case_of_the_program_is_a_test() -> None:
    assert len(CASES) == len(set(CASES)) >= 12
