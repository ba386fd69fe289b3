"""deploy/Dockerfile and what belongs to it, as text; test_container.py executes it."""

from __future__ import annotations

import fnmatch
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from tests.support.dockerfile import Dockerfile, Instruction

from penstock.service.config.settings import SETTINGS, Settings

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
TARGETS = ("penstock", "full")
# Written in halves, so that this file does not hold what it looks for.
REGISTRIES = tuple(
    first + second
    for first, second in (
        *(("docker", ".io"), ("docker", ".com"), ("ghcr", ".io"), ("quay", ".io")),
        *(("gcr", ".io"), ("mcr.", "microsoft.com"), ("azurecr", ".io"), ("amazonaws", ".com")),
    )
)


@pytest.fixture(scope="module")
def dockerfile() -> Dockerfile:
    return Dockerfile.read(DEPLOY / "Dockerfile")


def instructions(dockerfile: Dockerfile, name: str) -> list[Instruction]:
    stages = dockerfile.stages.values()
    return [each for stage in stages for each in stage.instructions if each.name == name]


@pytest.mark.parametrize("target", TARGETS)
def test_image_serves_as_a_user_of_its_own(dockerfile: Dockerfile, target: str) -> None:
    settings = dockerfile.settings(target)
    user, _, group = settings.user.partition(":")
    assert int(user) > 0 and int(group) > 0
    assert settings.volumes == [settings.environ["PENSTOCK_DATA"]]
    assert (settings.entrypoint, settings.command) == (["penstock-image"], ["serve"])
    assert settings.health == ["penstock", "health"]
    ports = {getattr(Settings(), f"{name}_port") for name in ("amqp", "amqps", "https", "admin")}
    assert set(settings.ports) == {*ports, Settings().portal_port}
    variables = {name for name in settings.environ if name.startswith("PENSTOCK_")}
    assert variables <= {setting.variable for setting in SETTINGS}


def test_targets_are_the_documented_ones(dockerfile: Dockerfile) -> None:
    assert dockerfile.default_target == "penstock"
    assert set(TARGETS) <= set(dockerfile.stages)
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(dockerfile.arguments["EXTRAS"].split(",")) <= set(extras["optional-dependencies"])


def test_compiler_and_package_tools_stay_behind(dockerfile: Dockerfile) -> None:
    for target in TARGETS:
        final = [each for stage in dockerfile.lineage(target) for each in stage.instructions]
        assert not [each for each in final if "apt-get" in each.text or " pip " in each.text]


def test_context_is_what_the_image_copies_and_no_more(dockerfile: Dockerfile) -> None:
    copied = {
        source
        for each in instructions(dockerfile, "COPY")
        if "from" not in each.flags
        for source in each.words[:-1]
    }
    assert [source for source in copied if not (ROOT / source).exists()] == []
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    lines = [line for line in ignored if line and not line.startswith("#")]
    assert lines[0] == "*"
    assert {line[1:] for line in lines if line.startswith("!")} == copied
    out = [line for line in lines[1:] if not line.startswith("!")]
    assert any(fnmatch.fnmatch("src/penstock/kernels/_columns.so", line) for line in out)


def test_no_file_of_deploy_names_a_registry() -> None:
    found = [
        f"{file.relative_to(ROOT)}: {host}"
        for file in (*DEPLOY.rglob("*"), *(ROOT / "docs" / "guides").glob("*.md"))
        if file.is_file()
        for host in REGISTRIES
        if host in file.read_text()
    ]
    assert found == []


@pytest.mark.parametrize(
    ("eula", "mounted", "expected"),
    [
        ("Y", True, "emulator=1 config=CONFIG serve --no-portal"),
        ("Y", False, "emulator= config= serve --no-portal"),
        ("N", True, "emulator= config= serve --no-portal"),
        (None, True, "emulator= config= serve --no-portal"),
    ],
)
def test_entry_point_is_the_emulator_only_with_license_and_configuration(
    tmp_path: Path, eula: str | None, mounted: bool, expected: str
) -> None:
    script = (DEPLOY / "entrypoint.sh").read_text()
    place = re.search(r"^config=(\S+)$", script, re.MULTILINE)
    assert place is not None and place[1] == "/Eventhubs_Emulator/ConfigFiles/Config.json"
    config = tmp_path / "Config.json"
    (tmp_path / "entry").write_text(script.replace(place[1], str(config)))
    if mounted:
        config.write_text("{}")
    penstock = tmp_path / "penstock"
    penstock.write_text(
        '#!/bin/sh\necho "emulator=$PENSTOCK_EMULATOR config=$PENSTOCK_CONFIG $*"\n'
    )
    penstock.chmod(0o755)
    environ = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    if eula is not None:
        environ["ACCEPT_EULA"] = eula
    done = subprocess.run(
        ["sh", str(tmp_path / "entry"), "serve", "--no-portal"],
        capture_output=True,
        text=True,
        env=environ,
        timeout=30,
        check=True,
    )
    assert done.stdout.strip() == expected.replace("CONFIG", str(config))
    assert ("this is Penstock" in done.stderr) == (eula == "Y" and not mounted)


def test_bill_of_materials_is_complete_and_the_same_each_time(tmp_path: Path) -> None:
    texts = []
    for name in ("one", "two"):
        subprocess.run(
            [sys.executable, ROOT / "tools" / "sbom.py", tmp_path / name],
            stdout=subprocess.DEVNULL,
            timeout=60,
            check=True,
        )
        texts.append((tmp_path / name / "sbom.cdx.json").read_text())
    assert texts[0] == texts[1]
    bill = json.loads(texts[0])
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    found = {each["name"]: each for each in bill["components"]}
    assert len({each["bom-ref"] for each in bill["components"]}) == len(bill["components"])
    msgspec = found["msgspec"]
    assert msgspec["purl"] == f"pkg:pypi/msgspec@{msgspec['version']}"
    assert msgspec["licenses"] == [{"expression": "BSD-3-Clause"}]
    assert found["crc32c"]["licenses"][0]["license"]["name"].startswith("GNU Lesser")
    lines = (tmp_path / "one" / "licenses.txt").read_text().splitlines()
    assert len(lines) == len(bill["components"])
    unknown = [line for line in lines if line.endswith(": unknown")]
    assert unknown == []
