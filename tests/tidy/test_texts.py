"""The source as text: sizes, sleeping tests, notes to self, addresses that do not belong here."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

FILE_LINES_MAX = 600
FUNCTION_LINES_MAX = 70
SLEEP_SECONDS_MAX = 0.05

# Written in halves, so that this file does not hold what it looks for.
NOTE_TO_SELF = "FIX" + "ME"
OTHER_PROJECT = (
    r"(?:pip|uv|pipx) +install +(?:-\S+ +)*['\"]?" + r"penstock(?![-_\w])"
    r"|(?<![-\w.])" + r"penstock\[(?:spark|capture|s3|connect|delta|all|dev)"
)
REGISTRY_HOSTS = tuple(
    first + second
    for first, second in (
        ("pypi", ".org"),
        ("python", "hosted.org"),
        ("npm", "js.org"),
        ("npm", "js.com"),
        ("yarn", "pkg.com"),
        ("crates", ".io"),
        ("proxy.go", "lang.org"),
        ("sum.go", "lang.org"),
        ("maven", ".org"),
        ("maven.apache", ".org"),
        ("deb.", "debian.org"),
        ("security.", "debian.org"),
        ("docker", ".io"),
        ("ghcr", ".io"),
        ("gcr", ".io"),
        ("mcr.", "microsoft.com"),
        ("quay", ".io"),
    )
)


def test_files_are_short_enough_to_read_at_once(
    code_files: list[Path], cython_files: list[Path], root: Path
) -> None:
    files = code_files + cython_files
    lengths = {file.relative_to(root): len(file.read_text().splitlines()) for file in files}
    assert {file: n for file, n in lengths.items() if n > FILE_LINES_MAX} == {}


def test_functions_are_short_enough_to_hold_in_mind(
    code_files: list[Path], cython_files: list[Path], root: Path
) -> None:
    too_long = [
        f"{file.relative_to(root)}:{line} {name}: {length} lines"
        for file in cython_files
        for line, name, length in _cython_functions(file.read_text())
        if length > FUNCTION_LINES_MAX
    ]
    too_long += [
        f"{file.relative_to(root)}:{node.lineno} {node.name}: {_line_count(node)} lines"
        for file in code_files
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and _line_count(node) > FUNCTION_LINES_MAX
    ]
    assert too_long == []


def test_files_say_what_they_are_for(code_files: list[Path], root: Path) -> None:
    silent = [
        str(file.relative_to(root))
        for file in code_files
        if ast.get_docstring(ast.parse(file.read_text())) is None
    ]
    assert silent == []


def test_tests_do_not_sleep(code_files: list[Path], root: Path) -> None:
    sleeping = [
        f"{file.relative_to(root)}:{call.lineno} sleeps {seconds} s"
        for file in code_files
        if file.is_relative_to(root / "tests")
        for call, seconds in _sleeps(ast.parse(file.read_text()))
        if seconds >= SLEEP_SECONDS_MAX
    ]
    assert sleeping == []


def test_main_holds_no_notes_to_self(code_files: list[Path], root: Path) -> None:
    notes = [
        f"{file.relative_to(root)}:{number}"
        for file in code_files
        for number, line in enumerate(file.read_text().splitlines(), 1)
        if NOTE_TO_SELF in line
    ]
    assert notes == []


def test_no_file_names_a_package_registry(repository_files: list[Path], root: Path) -> None:
    pattern = re.compile("|".join(re.escape(host) for host in REGISTRY_HOSTS).encode())
    named = [
        f"{file.relative_to(root)}: {found.group().decode()}"
        for file in repository_files
        if (found := pattern.search(file.read_bytes()))
    ]
    assert named == []


def test_no_file_installs_the_package_of_another_project(
    repository_files: list[Path], root: Path
) -> None:
    """The name `penstock` on PyPI is not ours: `penstock-eventhubs` is."""
    other = re.compile(OTHER_PROJECT.encode())
    named = [
        f"{file.relative_to(root)}: {found.group().decode()}"
        for file in repository_files
        if (found := other.search(file.read_bytes()))
    ]
    assert named == []


def test_the_check_for_the_other_project_sees_each_form() -> None:
    name = "pen" + "stock"
    forms = (
        f"pip install {name}",
        f"pip install '{name}'",
        f"pip install -U {name}",
        f"{name}[s3]",
    )
    assert [form for form in forms if not re.search(OTHER_PROJECT, form)] == []
    ours = (f"pip install {name}-eventhubs", f"pip install -U '{name}-eventhubs[s3]'", f"{name}[0]")
    assert [form for form in ours if re.search(OTHER_PROJECT, form)] == []


def test_the_sleep_check_sees_each_way_to_sleep() -> None:
    source = "time.sleep(1)\nawait asyncio.sleep(0.5)\nsleep(delay)\nsleep(secs=2)\nsleep(0)"
    assert sorted(seconds for _, seconds in _sleeps(ast.parse(source))) == [0, 0.5, 1, 2]


def test_the_size_check_sees_each_form_of_a_cython_function() -> None:
    source = "\n".join(
        (
            "cdef extern from *:",
            "    int resize(void* data) except -1",
            "cdef class Rows:",
            "    cdef int add(self, int row) except -1:",
            "        return row",
            "",
            "    def take(self):",
            "        cdef int count = len(self)",
            "",
            "        return count",
            "",
            "cdef inline int find(",
            "    int a,",
            ") noexcept nogil:",
            "    return a",
            "cpdef last(): return 1",
        )
    )
    assert list(_cython_functions(source)) == [
        (4, "add", 2),
        (7, "take", 4),
        (12, "find", 4),
        (16, "last", 1),
    ]


def _cython_functions(source: str) -> Iterator[tuple[int, str, int]]:
    """Line, name and number of lines of each function; the ast module cannot parse Cython."""
    lines = source.splitlines()
    for start, line in enumerate(lines):
        head = re.match(r"( *)(?:cdef|cpdef|def) [^=(]*?(\w+)\(", line)
        if head is None:
            continue
        last = start
        while ":" not in lines[last].partition(")")[2]:  # the signature's end
            last += 1
        for number in range(last + 1, len(lines)):
            if lines[number].strip():
                if not lines[number].startswith(head[1] + " "):
                    break
                last = number
        yield start + 1, head[2], last - start + 1


def _line_count(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    assert node.end_lineno is not None
    return node.end_lineno - node.lineno + 1


def _sleeps(tree: ast.AST) -> Iterator[tuple[ast.Call, float]]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = getattr(node.func, "attr", getattr(node.func, "id", None))
        given = [*node.args, *(keyword.value for keyword in node.keywords)]
        if name == "sleep" and given and isinstance(given[0], ast.Constant):
            seconds = given[0].value
            if isinstance(seconds, int | float):
                yield node, float(seconds)
