"""Which package may import which, beyond the layers of .importlinter: separations, banned modules,
dependencies.

These tables may name packages that do not exist yet.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import NamedTuple

import pytest

# Bytes, records and `now` come in; events, bytes or decisions go out (ARCHITECTURE.md).
PURE_PACKAGES = ("amqp", "kernels", "auth", "formats", "broker")
IMPURE_MODULES = {"asyncio", "socket", "ssl", "time", "random", "threading"}

# (who, what it may not import, except) – each with its reason beside it.
SEPARATIONS = (
    # A new engine or a new endpoint changes one package.
    ("broker", "log", ("log.api",)),
    ("broker", "catalog", ("catalog.api",)),
    ("broker", "amqp", ()),
    ("broker", "auth", ()),
    # Everything gets what it needs by constructor: only wiring names concrete classes.
    ("gateway", "log", ("log.api",)),
    ("gateway", "catalog", ("catalog.api",)),
    ("management", "log", ("log.api",)),
    ("management", "catalog", ("catalog.api",)),
    ("service", "log", ("log.api", "log.embedded.verify")),  # a backup is verified
    ("service", "catalog", ("catalog.api", "catalog.offline")),  # `penstock doctor`
    ("testing", "log", ("log.api",)),
    ("testing", "catalog", ("catalog.api",)),
    ("cli", "log", ("log.api", "log.embedded.verify")),  # `penstock log verify|dump`
    ("cli", "catalog", ("catalog.api", "catalog.offline")),  # `penstock usage|grant`
    # Both protocols lead to the same broker: neither imports the other.
    ("gateway.amqp", "gateway.http", ()),
    ("gateway.http", "gateway.amqp", ()),
    # These are clients, so that they work with Azure's own Event Hubs as well.
    *(
        (client, package, ())
        for client in ("client", "spark", "checkpoints", "capture")
        for package in ("broker", "log", "catalog", "gateway")
    ),
    # The portal acts as its users do.
    *(("portal", package, ()) for package in ("broker", "log", "catalog", "gateway")),
    ("portal", "auth", ("auth.sas",)),  # a user signs tokens with the keys of a policy
    (
        "portal",
        "management",
        ("management.client", "management.permissions", "management.resources"),
    ),
)
# The composition root, and that of a broker inside a user's test.
COMPOSITION_ROOTS = ("service.wiring", "testing.wiring")

# Heavy modules: (top-level module, packages that may import it, and only inside functions).
HEAVY = (
    ("pyspark", ("spark", "cli", "testing", "pyspark_eventhubs")),
    ("pyarrow", ("spark", "cli", "testing")),
    ("fsspec", ("capture", "spark")),
)
# Classes that Spark makes us derive from its own, and work on Arrow arrays; loaded late by
# everybody else.
DERIVED = (
    "spark.arrow_arrays",
    "spark.capture.compact",
    "spark.capture.parquet_file",
    "spark.eventhubs.rows",
    "spark.eventhubs.sink_rows",
    "spark.capture.history",
    "spark.capture.stream",
    "spark.eventhubs.data_source",
    "pyspark_eventhubs",
)
# Tools of which the project has one copy: (module, the modules that may import it).
SHARED_TOOLS = (
    ("http.client", ("io.http_client",)),
    # urllib honors the environment's HTTP proxy, behind which a webhook may be.
    ("urllib.request", ("spark.capture.announcements",)),
    # The log's own lock is part of its directory format.
    ("fcntl", ("io.files", "io.runtime_file", "log.embedded.directory")),
    # `penstock doctor` reports the version of uvloop.
    ("uvloop", ("io.event_loop", "service.diagnostics")),
)


class Import(NamedTuple):
    importer: str  # dotted, without "penstock."
    target: str  # dotted, as absolute as Python would make it
    where: str
    at_top: bool


@pytest.fixture(scope="module")
def imports(source_files: list[Path], root: Path) -> list[Import]:
    return [found for file in source_files for found in _imports(file, root / "src")]


def test_pure_packages_import_no_clock_no_chance_and_no_io(imports: list[Import]) -> None:
    impure = [
        f"{found.where} imports {found.target}"
        for found in imports
        if _within(found.importer, PURE_PACKAGES)
        if _first(found.target) in IMPURE_MODULES or _within(found.target, ("penstock.io",))
    ]
    assert impure == []


@pytest.mark.parametrize(("who", "what", "but"), SEPARATIONS, ids=lambda part: str(part))
def test_separated_packages_do_not_import_each_other(
    who: str, what: str, but: tuple[str, ...], imports: list[Import]
) -> None:
    forbidden = [
        f"{found.where} imports {found.target}"
        for found in imports
        if _within(found.importer, (who,)) and not _within(found.importer, COMPOSITION_ROOTS)
        if _within(_in_penstock(found.target), (what,))
        if not _within(_in_penstock(found.target), but)
    ]
    assert forbidden == []


@pytest.mark.parametrize(("module", "packages"), HEAVY)
def test_heavy_modules_are_loaded_late_and_by_few(
    module: str, packages: tuple[str, ...], imports: list[Import]
) -> None:
    heavy = [found for found in imports if _first(found.target) == module]
    wrong = [
        found.where
        for found in heavy
        if (found.at_top and not _within(found.importer, DERIVED))
        or not _within(found.importer, packages)
    ]
    assert wrong == []


def test_modules_do_not_import_each_other_in_a_cycle(imports: list[Import]) -> None:
    """Late imports and those for type checking count as well."""
    modules = {found.importer for found in imports}
    graph: dict[str, set[str]] = {module: set() for module in modules}
    for found in imports:
        target = _in_penstock(found.target)
        if target is not None and target not in modules:
            target = target.rpartition(".")[0]
        if target in modules and target != found.importer:
            graph[found.importer].add(target)
    # What imports nothing that is left is in no cycle; nor is what is imported by nothing left.
    is_smaller = True
    while is_smaller:
        imported = set().union(*graph.values())
        remaining = {
            module: graph[module] & graph.keys()
            for module in graph
            if graph[module] & graph.keys() and module in imported
        }
        is_smaller = len(remaining) < len(graph)
        graph = remaining
    assert sorted(graph) == []


@pytest.mark.parametrize(("module", "importers"), SHARED_TOOLS)
def test_shared_tools_have_one_home(
    module: str, importers: tuple[str, ...], imports: list[Import]
) -> None:
    copies = [
        f"{found.where} imports {found.target}"
        for found in imports
        if _within(found.target, (module,)) and found.importer not in importers
    ]
    assert copies == []


def test_only_io_opens_sqlite_files(source_files: list[Path], root: Path) -> None:
    home = root / "src/penstock/io/database.py"
    copies = [
        str(file.relative_to(root))
        for file in source_files
        if file != home and "sqlite3.connect(" in file.read_text()
    ]
    assert copies == []


def test_private_names_stay_in_their_package(imports: list[Import]) -> None:
    taken = [
        f"{found.where} imports {found.target}"
        for found in imports
        if (target := _in_penstock(found.target))
        and _first(target) != _first(found.importer)
        and any(re.match(r"_(?!_)", part) for part in target.split("."))
    ]
    assert taken == []


def test_every_import_is_a_declared_dependency(imports: list[Import], root: Path) -> None:
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    extras = project.get("optional-dependencies", {})
    declared = {
        _canonical(requirement)
        for group in (project["dependencies"], *(extras[e] for e in extras if e != "dev"))
        for requirement in group
    }
    distributions = packages_distributions()
    undeclared = [
        f"{found.where} imports {found.target}"
        for found in imports
        if (top := _first(found.target)) not in sys.stdlib_module_names | {"penstock"}
        if not declared & {_canonical(name) for name in distributions.get(top, [top])}
    ]
    assert undeclared == []


def test_the_import_reader_resolves_each_form(tmp_path: Path) -> None:
    file = tmp_path / "penstock" / "broker" / "reader.py"
    file.parent.mkdir(parents=True)
    file.write_text(
        "import os.path\nfrom penstock.log import api\nfrom .. import model\n"
        "from .routing import hash_of\ndef f():\n    import ssl\n"
    )
    found = [(each.target, each.at_top) for each in _imports(file, tmp_path)]
    assert found == [
        ("os.path", True),
        ("penstock.log.api", True),
        ("penstock.model", True),
        ("penstock.broker.routing.hash_of", True),
        ("ssl", False),
    ]


def _imports(file: Path, source: Path) -> Iterator[Import]:
    tree = ast.parse(file.read_text())
    parts = file.relative_to(source).with_suffix("").parts
    module = parts[:-1] if parts[-1] == "__init__" else parts
    importer = ".".join(module[1:] if module[0] == "penstock" else module)
    top_level = set(tree.body)
    for node in ast.walk(tree):
        where = f"{file.relative_to(source)}:{getattr(node, 'lineno', 0)}"
        at_top = node in top_level
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(importer, alias.name, where, at_top)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(parts[: len(parts) - node.level]) if node.level else ""
            prefix = ".".join(part for part in (base, node.module) if part)
            for alias in node.names:
                yield Import(importer, f"{prefix}.{alias.name}", where, at_top)


def _within(module: str | None, packages: tuple[str, ...]) -> bool:
    return module is not None and any(
        module == package or module.startswith(package + ".") for package in packages
    )


def _in_penstock(target: str) -> str | None:
    return target.removeprefix("penstock.") if _first(target) == "penstock" else None


def _first(dotted: str) -> str:
    return dotted.partition(".")[0]


def _canonical(requirement: str) -> str:
    name = re.split(r"[^A-Za-z0-9_.-]", requirement, maxsplit=1)[0]
    return re.sub(r"[-_.]+", "-", name).lower()
