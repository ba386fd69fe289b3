"""The image, built from deploy/Dockerfile and run: as the emulator, and as plain Penstock.

With a container engine (`docker info` or `podman info` answers) the engine builds and runs it.
Without one the same instructions are executed in a clean root (tests/support/clean_root.py).
"""

from __future__ import annotations

import json
import os
import shutil
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import pytest
from tests.support import clean_root, container_engine
from tests.support.dockerfile import Dockerfile

ROOT = Path(__file__).resolve().parents[2]
CLIENT = Path(__file__).with_name("container_client.py")
ALIAS = "eventhubs-emulator"
EMULATOR = (
    f"Endpoint=sb://{ALIAS};SharedAccessKeyName=RootManageSharedAccessKey;"
    "SharedAccessKey=SAS_KEY_VALUE;UseDevelopmentEmulator=true;"
)
EMULATOR_ENVIRON = {"ACCEPT_EULA": "Y", "BLOB_SERVER": "azurite", "METADATA_SERVER": "azurite"}
CONFIG_PLACE = "/Eventhubs_Emulator/ConfigFiles/Config.json"
READY = "Emulator Service is Successfully Up!"
KEY = "a-key-of-this-test"
MEGABYTE = 1024 * 1024
BUILD_DEADLINE_S = 3000

pytestmark = [pytest.mark.full("documents"), pytest.mark.sdk, pytest.mark.timeout(900)]


class Container(Protocol):
    """What the tests need of a running image; its log file has standard output and error."""

    log: Path

    def wait_for(self, text: str) -> None: ...

    def execute(self, command: list[str]) -> Any: ...

    def run(self, program: Path, *arguments: str, names: str) -> str: ...

    def stop(self) -> int: ...


class Images:
    """Builds each target once, and starts containers that are stopped with the test."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._dockerfile = Dockerfile.read(ROOT / "deploy" / "Dockerfile")
        self.engine = container_engine.find()
        self._builder: clean_root.Builder | None = None
        self._count = 0
        self.running: list[Container] = []

    def build(self, target: str) -> Any:
        if self.engine is not None:
            return container_engine.build(self.engine, target)
        if self._builder is None:
            reason = next(clean_root.missing_tool(), None)
            if reason is not None:
                pytest.skip(f"no container engine answers, and {reason}")
            self._builder = clean_root.Builder(
                self._dockerfile, self._folder / "stages", self._folder / "build.log"
            )
        return self._builder.build(target)

    def start(
        self, target: str, environ: Mapping[str, str], volumes: Mapping[Path, str]
    ) -> Container:
        image = self.build(target)
        self._count += 1
        log = self._folder / f"container-{self._count}" / "log"
        log.parent.mkdir()
        log.touch()
        make: Callable[..., Container] = (
            clean_root.CleanRootContainer
            if self.engine is None
            else container_engine.EngineContainer
        )
        container = make(image, log, environ=environ, volumes=volumes)
        self.running.append(container)
        return container


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Images]:
    folder = tmp_path_factory.mktemp("images")
    yield Images(folder)
    shutil.rmtree(folder / "stages", ignore_errors=True)


@pytest.fixture
def start(images: Images) -> Iterator[Callable[..., Container]]:
    yield images.start
    while images.running:
        images.running.pop().stop()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A volume that belongs to the image's user."""
    folder = tmp_path / "data"
    folder.mkdir(mode=0o700)
    os.chown(folder, 10001, 10001)
    return folder


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """As the emulator's users have it."""
    entity = {"Name": "eh1", "PartitionCount": "2", "ConsumerGroups": [{"Name": "cg1"}]}
    namespace = {"Type": "EventHub", "Name": "emulatorNs1", "Entities": [entity]}
    content = {"UserConfig": {"NamespaceConfig": [namespace], "LoggingConfig": {"Type": "File"}}}
    file = tmp_path / "Config.json"
    file.write_text(json.dumps(content))
    return file


def ask(container: Container, *words: str, names: str = ALIAS) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(container.run(CLIENT, *words, names=names))
    return answer


@pytest.mark.timeout(BUILD_DEADLINE_S)
def test_emulator_serves_its_users_and_keeps_their_events(
    start: Callable[..., Container], data: Path, config: Path
) -> None:
    volumes = {data: "/data", config: CONFIG_PLACE}
    container = start("penstock", EMULATOR_ENVIRON, volumes)
    container.wait_for(READY)
    assert "without TLS" in container.log.read_text()
    health = ask(container, "get", f"http://{ALIAS}:5300/health")
    assert (health["status"], json.loads(health["body"])["status"]) == (200, "healthy")
    assert ask(container, "send", EMULATOR, "eh1", "10")["batch_bytes_max"] == MEGABYTE
    ask(container, "send", EMULATOR, "eh1", "1", str(MEGABYTE - 1024))
    expected = ["0", *map(str, range(10))]
    found = ask(container, "read", EMULATOR, "eh1")
    assert found == {"bodies": expected, "largest": MEGABYTE - 1024}
    assert container.stop() == 0
    assert "stopped" in container.log.read_text().splitlines()[-1]

    again = start("penstock", EMULATOR_ENVIRON, volumes)
    again.wait_for(READY)
    assert ask(again, "read", EMULATOR, "eh1")["bodies"] == expected


def test_emulator_opens_nothing_but_health_over_plain_http(
    start: Callable[..., Container], data: Path, config: Path
) -> None:
    container = start("penstock", EMULATOR_ENVIRON, {data: "/data", config: CONFIG_PLACE})
    container.wait_for(READY)
    other = [clean_root.OTHER_ADDRESS] if isinstance(container, _CLEAN) else []
    for path, status in (("health", 200), ("ready", 200), ("metrics", 403), ("openapi.json", 403)):
        answer = ask(container, "get", f"http://{ALIAS}:5300/{path}", *other)
        assert answer["status"] == status, path


def test_plain_image_has_keys_of_its_own_and_tls(
    start: Callable[..., Container], data: Path, config: Path
) -> None:
    """A mounted Config.json alone changes nothing: the license was not accepted."""
    container = start("penstock", {}, {data: "/data", config: CONFIG_PLACE})
    container.wait_for(" ready ")
    assert READY not in container.log.read_text()
    assert ask(container, "connect", ALIAS, "5672")["open"] is False
    assert ask(container, "get", f"https://{ALIAS}:5300/health")["status"] == 200
    own = clean_root.NAME  # the port answers everything else for names of this machine only
    answer = ask(container, "get", f"https://{own}:5300/metrics", names=own)
    assert answer["status"] == 401
    sent = container.execute(["penstock", "send", "events", "--text", "hello"])  # over TLS
    assert sent.returncode == 0, sent.stderr


def test_documented_command_gives_the_plain_connection_string(
    start: Callable[..., Container], data: Path
) -> None:
    environ = {"PENSTOCK_AMQP_PORT": "5672", "PENSTOCK_ROOT_KEY": KEY}
    container = start("penstock", environ | {"PENSTOCK_PUBLIC_HOSTS": "localhost"}, {data: "/data"})
    container.wait_for(" ready ")
    text = EMULATOR.replace("SAS_KEY_VALUE", KEY)
    ask(container, "send", text, "events", "3")
    assert ask(container, "read", text, "events")["bodies"] == ["0", "1", "2"]
    runtime = json.loads(container.execute(["cat", "/data/runtime.json"]).stdout)
    assert runtime["emulator_connection_string"] == (
        f"Endpoint=sb://localhost:5672;SharedAccessKeyName=RootManageSharedAccessKey;"
        f"SharedAccessKey={KEY};UseDevelopmentEmulator=true;"
    )


def test_container_is_confined_and_says_what_is_in_it(
    start: Callable[..., Container], images: Images, data: Path
) -> None:
    container = start("penstock", {}, {data: "/data"})
    container.wait_for(" ready ")
    health = Dockerfile.read(ROOT / "deploy" / "Dockerfile").settings("penstock").health
    assert container.execute(health).returncode == 0
    assert container.execute(["id", "-u"]).stdout.strip() == "10001"
    for place in ("/probe", "/opt/penstock/probe", "/tmp/probe"):
        assert container.execute(["touch", place]).returncode != 0, place
    bill = json.loads(
        container.execute(["cat", "/opt/penstock/share/doc/penstock/sbom.cdx.json"]).stdout
    )
    names = {each["name"] for each in bill["components"]}
    ours = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["name"]
    assert {ours, "cryptography", "python", "libc6"} <= names
    assert not {"pyspark", "pytest", "gcc"} & names
    text = container.execute(["cat", "/opt/penstock/share/doc/penstock/licenses.txt"]).stdout
    assert "cryptography" in text
    kernel = container.execute(["penstock", "doctor"]).stdout
    assert "compiled" in kernel


@pytest.mark.timeout(BUILD_DEADLINE_S)
def test_full_image_has_spark_and_capture(
    start: Callable[..., Container], data: Path, tmp_path: Path
) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir(mode=0o777)
    temporary.chmod(0o777)
    environ = {"PENSTOCK_AMQP_PORT": "5672", "PENSTOCK_ROOT_KEY": KEY}
    container = start(
        "full",
        environ | {"PENSTOCK_PUBLIC_HOSTS": "localhost"},
        {data: "/data", temporary: "/tmp"},
    )
    container.wait_for(" ready ")
    ask(container, "send", EMULATOR.replace("SAS_KEY_VALUE", KEY), "events", "5")
    read = (
        "import penstock.spark; spark = penstock.spark.session()\n"
        "print('rows', spark.read.format('eventhubs').option('eventHubName', 'events')"
        ".load().count())"
    )
    done = container.execute(["python", "-c", read])
    assert "rows 5" in done.stdout, done.stdout + done.stderr
    enabled = container.execute(["penstock", "capture", "enable", "events", "--interval", "1m"])
    assert enabled.returncode == 0, enabled.stderr
    container.wait_for("capture_started")


_CLEAN = clean_root.CleanRootContainer
