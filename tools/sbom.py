"""The license list and the bill of materials of an installed environment.

    ENVIRONMENT/bin/python tools/sbom.py DIRECTORY

Writes DIRECTORY/licenses.txt, a line for each package, and DIRECTORY/sbom.cdx.json (CycloneDX 1.6):
the Python packages of the environment that runs it, and the packages of Debian on the machine. Both
come from installed metadata alone; the same installation gives the same bytes. Uses the standard
library only, since it runs where only Penstock is installed.
"""

from __future__ import annotations

import json
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import NamedTuple

UNKNOWN = "unknown"
_CLASSIFIER = "License :: "
_LICENSE_CHARS_MAX = 100  # some packages put the whole text into the field
_DEBIAN_FIELDS = "${Package}\t${Version}\t${Architecture}\n"
_DEADLINE_S = 60


class Component(NamedTuple):
    name: str
    version: str
    license: str
    is_expression: bool  # of SPDX; else a name
    purl: str  # package URL, by which scanners know a package


def main(directory: Path) -> None:
    components = sorted({*_python_packages(), *_debian_packages(), _interpreter()})
    directory.mkdir(parents=True, exist_ok=True)
    lines = [f"{each.name} {each.version}: {each.license}\n" for each in components]
    (directory / "licenses.txt").write_text("".join(lines))
    bill = json.dumps(_bill(components), indent=1, sort_keys=True)
    (directory / "sbom.cdx.json").write_text(f"{bill}\n")
    print(f"{len(components)} packages: {directory}/licenses.txt, {directory}/sbom.cdx.json")


def _python_packages() -> Iterator[Component]:
    for package in distributions():
        name = re.sub(r"[-_.]+", "-", package.name).lower()
        purl = f"pkg:pypi/{name}@{package.version}"
        yield Component(name, package.version, *license_of(package), purl)


def license_of(package: Distribution) -> tuple[str, bool]:
    """The license and whether it is an SPDX expression: the expression of new metadata, else the
    names of the classifiers, else the old license field."""
    fields = package.metadata
    if "License-Expression" in fields:
        return fields["License-Expression"], True
    named = [
        each.rpartition(" :: ")[2]
        for each in fields.get_all("Classifier") or []
        if each.startswith(_CLASSIFIER) and each != "License :: OSI Approved"
    ]
    if named:
        return ", ".join(named), False
    text = " ".join(fields["License"].split()) if "License" in fields else ""
    return (text if 0 < len(text) <= _LICENSE_CHARS_MAX else UNKNOWN), False


def _debian_packages() -> Iterator[Component]:
    """Their licenses are in /usr/share/doc/NAME/copyright, which is no list of names."""
    query = shutil.which("dpkg-query")
    if query is None:
        return
    listed = subprocess.run(
        [query, "--show", f"--showformat={_DEBIAN_FIELDS}"],
        capture_output=True,
        text=True,
        check=True,
        timeout=_DEADLINE_S,
    )
    for line in listed.stdout.splitlines():
        name, version, architecture = line.split("\t")
        purl = f"pkg:deb/debian/{name}@{version}?arch={architecture}"
        yield Component(name, version, f"see /usr/share/doc/{name}/copyright", False, purl)


def _interpreter() -> Component:
    version = platform.python_version()
    return Component("python", version, "PSF-2.0", True, f"pkg:generic/python@{version}")


def _bill(components: list[Component]) -> dict[str, object]:
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "components": [
            {
                "type": "library",
                "bom-ref": each.purl,
                "name": each.name,
                "version": each.version,
                "purl": each.purl,
                "licenses": [
                    {"expression": each.license}
                    if each.is_expression
                    else {"license": {"name": each.license}}
                ],
            }
            for each in components
        ],
    }


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python tools/sbom.py DIRECTORY")
    main(Path(sys.argv[1]))
