"""deploy/compose.yaml: consistent with the image and the command line; and started, without docker.

The started services are those of the file: their commands, variables, files and health checks, in
the order that it states, each in a clean root of the image `full`, in one network where their names
resolve. Azurite is the one of the other tests.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.support import clean_root, toolchains
from tests.support.clean_root import CleanRootContainer, CleanRootImage
from tests.support.dockerfile import Dockerfile

from penstock.cli.app import COMMANDS
from penstock.service.config.loader import load_settings
from penstock.service.config.settings import SETTINGS

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "deploy" / "compose.yaml"
HEALTHY_DEADLINE_S = 90
OUTCOME_DEADLINE_S = 240
NOT_SETTINGS = {"PENSTOCK_CONNECTION_STRING", "PENSTOCK_ROOT_KEY", "PENSTOCK_CONFIG"}


def interpolate(value: Any) -> Any:
    """`${NAME:-default}` and `$$`, as compose does without any variable set."""
    if isinstance(value, dict):
        return {key: interpolate(each) for key, each in value.items()}
    if isinstance(value, list):
        return [interpolate(each) for each in value]
    if isinstance(value, str):
        return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", value).replace("$$", "$")
    return value


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    content: dict[str, Any] = interpolate(yaml.safe_load(FILE.read_text()))
    return content


@pytest.fixture(scope="module")
def services(project: dict[str, Any]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = project["services"]
    return found


def in_order(services: dict[str, dict[str, Any]]) -> list[str]:
    """Each service after those it depends on."""
    order: list[str] = []
    while len(order) < len(services):
        ready = [
            name
            for name, service in services.items()
            if name not in order and set(service.get("depends_on", {})) <= set(order)
        ]
        assert ready, "the services depend on each other in a circle"
        order += ready
    return order


def test_order_is_by_health(services: dict[str, dict[str, Any]]) -> None:
    assert in_order(services)[:3] == ["azurite", "penstock", "capture"]
    for service in services.values():
        for name, wanted in service.get("depends_on", {}).items():
            check = services[name].get("healthcheck", {})
            if wanted["condition"] == "service_healthy":
                assert check["test"][0] == "CMD" and check["retries"] > 1
            else:
                assert wanted["condition"] == "service_completed_successfully"
                assert check == {"disable": True}  # it runs no service


def test_only_this_machine_reaches_the_ports(services: dict[str, dict[str, Any]]) -> None:
    image = Dockerfile.read(ROOT / "deploy" / "Dockerfile").settings("full")
    published = [port for service in services.values() for port in service.get("ports", [])]
    assert {int(port.rpartition(":")[2]) for port in published} == set(image.ports)
    assert all(port.startswith("127.0.0.1:") for port in published)


def test_files_volumes_and_variables_exist(
    project: dict[str, Any], services: dict[str, dict[str, Any]]
) -> None:
    known = {setting.variable for setting in SETTINGS} | NOT_SETTINGS
    for service in services.values():
        assert set(service.get("environment", {})) <= known
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            exists = (FILE.parent / source).is_dir() if "/" in source else True
            assert exists and ("/" in source or source in project["volumes"]), volume
        for config in service.get("configs", []):
            assert config["source"] in project["configs"]
    for name in ("capture", "pipeline"):
        assert services[name]["command"][0] in {entry.name for entry in COMMANDS}


def test_service_accepts_its_configuration(
    project: dict[str, Any], services: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    file = tmp_path / "penstock.toml"
    file.write_text(project["configs"]["penstock"]["content"])
    environ = services["penstock"]["environment"] | {"PENSTOCK_CONFIG": str(file)}
    settings = load_settings(flags={"host": "0.0.0.0"}, environ=environ)
    assert settings.amqp_port == 5672
    assert set(services) >= {"penstock"} and "penstock" in settings.public_hosts
    (destination,) = settings.capture.destinations
    words = services["capture"]["command"]
    assert words[words.index("--destination") + 1] == destination.name
    key = environ["PENSTOCK_ROOT_KEY"]
    for name in ("producer", "pipeline"):
        assert (
            f"SharedAccessKey={key};" in services[name]["environment"]["PENSTOCK_CONNECTION_STRING"]
        )


class Project:
    """The services, started one by one."""

    def __init__(self, content: dict[str, Any], image: CleanRootImage, folder: Path) -> None:
        self._content = content
        self._services: dict[str, dict[str, Any]] = content["services"]
        self._image = image
        self._folder = folder
        self.containers: dict[str, CleanRootContainer] = {}
        script = f"{clean_root.NETWORK_SCRIPT}exec sleep infinity"
        self._network = subprocess.Popen(["unshare", "--net", "sh", "-euc", script])
        self._azurite: subprocess.Popen[bytes] | None = None

    def start(self, name: str) -> None:
        if name == "azurite":
            self._start_azurite()
            return
        service = self._services[name]
        folder = self._folder / name
        folder.mkdir()
        (folder / "log").touch()
        self.containers[name] = CleanRootContainer(
            self._image,
            folder / "log",
            environ=service.get("environment", {}),
            volumes=self._volumes(name),
            entrypoint=service.get("entrypoint", ()),
            command=service.get("command", ()),
            network=self._network.pid,
            names=" ".join(self._services),
        )

    def wait_for(self, name: str, condition: str) -> None:
        if condition == "service_completed_successfully":
            container = self.containers[name]
            assert container.wait(HEALTHY_DEADLINE_S) == 0, container.log.read_text()
            return
        deadline = time.monotonic() + HEALTHY_DEADLINE_S
        while not self._is_healthy(name):
            assert time.monotonic() < deadline, f"{name} is not healthy"
            time.sleep(0.04)

    def stop(self) -> None:
        for container in self.containers.values():
            container.kill()
        for process in (self._azurite, self._network):
            if process is not None:
                process.kill()
                process.wait()

    def _is_healthy(self, name: str) -> bool:
        command = self._services[name]["healthcheck"]["test"][1:]
        if name in self.containers:
            return self.containers[name].execute(command).returncode == 0
        return subprocess.run(self._in_network(command), timeout=30).returncode == 0

    def _start_azurite(self) -> None:
        program, *words = self._services["azurite"]["command"]
        assert program == "azurite-blob"
        folder = self._folder / "azurite"
        folder.mkdir()
        script = toolchains.NODE / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
        words[words.index("/data")] = str(folder)
        command = [toolchains.require("node"), str(script), *words]
        self._azurite = subprocess.Popen(
            self._in_network(command), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def _in_network(self, command: list[str]) -> list[str]:
        return ["nsenter", "--target", str(self._network.pid), "--net", *command]

    def _volumes(self, name: str) -> dict[Path, str]:
        service = self._services[name]
        volumes: dict[Path, str] = {}
        for volume in service.get("volumes", []):
            source, place = volume.split(":")[:2]
            volumes[self._directory(source)] = place
        if "/data" not in volumes.values():  # VOLUME of the image: one without a name
            volumes[self._directory(f"anonymous-{name}")] = "/data"
        for mount in service.get("tmpfs", []):
            volumes[self._directory(f"tmp-{name}")] = mount.partition(":")[0]
        for config in service.get("configs", []):
            file = self._folder / f"config-{config['source']}"
            file.write_text(self._content["configs"][config["source"]]["content"])
            volumes[file] = config["target"]
        return volumes

    def _directory(self, source: str) -> Path:
        if "/" in source:
            return (FILE.parent / source).resolve()
        folder = self._folder / f"volume-{source}"
        if not folder.exists():
            folder.mkdir(mode=0o700)
            os.chown(folder, 10001, 10001)
        return folder


@pytest.fixture
def started(project: dict[str, Any], tmp_path: Path) -> Iterator[Project]:
    reason = next(clean_root.missing_tool(), None)
    if reason is not None:
        pytest.skip(reason)
    file = Dockerfile.read(ROOT / "deploy" / "Dockerfile")
    builder = clean_root.Builder(file, tmp_path / "stages", tmp_path / "build.log")
    running = Project(project, builder.build("full"), tmp_path)
    try:
        yield running
    finally:
        running.stop()


@pytest.mark.full("documents")
@pytest.mark.timeout(3000)
def test_readings_become_averages_and_captured_files(
    started: Project, services: dict[str, dict[str, Any]]
) -> None:
    for name in in_order(services):
        for needed, wanted in services[name].get("depends_on", {}).items():
            started.wait_for(needed, wanted["condition"])
        started.start(name)
    penstock = started.containers["penstock"]
    tail = shlex.split("penstock tail averages --from earliest -n 1 --format %b")
    tailed = penstock.execute(tail, timeout_s=OUTCOME_DEADLINE_S)
    pipeline = started.containers["pipeline"].log
    assert tailed.returncode == 0, tailed.stderr + pipeline.read_text()[-4000:]
    average = json.loads(tailed.stdout)
    assert average["device"].startswith("device-") and 15 <= average["average"] <= 25

    deadline = time.monotonic() + OUTCOME_DEADLINE_S
    while not (files := captured_files(penstock)):
        assert time.monotonic() < deadline, penstock.log.read_text()[-4000:]
    assert files > 0
    verified = penstock.execute(["penstock", "capture", "verify", "telemetry"])
    assert verified.returncode == 0, verified.stdout + verified.stderr
    assert started.containers["pipeline"].stop() == 0
    assert penstock.stop() == 0


def captured_files(penstock: CleanRootContainer) -> int:
    status = penstock.execute(["penstock", "capture", "status", "-o", "json"])
    assert status.returncode == 0, status.stderr
    (row,) = json.loads(status.stdout)
    return int(row["files"])
