"""`make test`: the tests in portions, three at a time, since most wait for processes and clocks.

    tools/test.py                  everything but tests/tidy, which `make check` has run
    tools/test.py ARGS...          one pytest with these arguments

What a portion said is shown when it ends; a line each minute says which are under way. A few tests
that failed are run once more, alone: what only fails beside others is told, by name, as such.
PENSTOCK_TEST_LANES=1 runs one after the other.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
TESTS = ROOT / "tests"
LANES = int(os.environ.get("PENSTOCK_TEST_LANES", "3"))
# The long ones first, and Spark's not all at once. A file belongs to the longest name that fits;
# what fits none makes a last portion, so that no file is forgotten.
PORTIONS = (
    "tests/spark",
    "tests/compatibility",
    "tests/system",
    "tests/spark/capture/test_service.py",
    "tests/spark/capture/test_kills.py",
    "tests/faults",
    "tests/spark/capture",
    "tests/spark/pipelines",
    "tests/unit/kernels",
    "tests/system/portal",
    "tests/unit",
)
ELSEWHERE = "tests/tidy"
COUNTED = re.compile(r"(\d+) (passed|failed|error|skipped|xfailed|xpassed)")
FAILED = re.compile(r"^(?:FAILED|ERROR) (tests/\S+?::.+?)(?: - .*)?$", re.MULTILINE)
_AGAIN_MAX = 6  # more have failed for a reason
_TELL_EVERY_S = 60.0
_NO_TESTS = 5  # pytest's exit code where a selection is empty


class Running(NamedTuple):
    name: str
    process: subprocess.Popen[bytes]
    said: IO[bytes]
    began_s: float


def main() -> int:
    if sys.argv[1:]:
        return subprocess.run(pytest(*sys.argv[1:]), cwd=ROOT).returncode
    began_s = time.monotonic()
    counts: Counter[str] = Counter()
    failed: dict[str, list[str]] = {}  # tests by portion; none where it does not say which
    for ended in run_all(list(portions().items())):
        code = ended.process.returncode
        ended.said.seek(0)
        text = ended.said.read().decode(errors="replace")
        took_s = time.monotonic() - ended.began_s
        print(f"\n===== {ended.name} ({took_s:.0f} s)\n{text}", flush=True)
        counts.update({kind: int(n) for n, kind in COUNTED.findall(text.strip().split("\n")[-1])})
        if code not in (0, _NO_TESTS):
            failed[ended.name] = list(dict.fromkeys(FAILED.findall(text)))
    bad = counts["failed"] + counts["error"]
    if failed and pass_alone(list(failed.values())):
        names = ", ".join(test for tests in failed.values() for test in tests)
        print(f"failed beside others, passed alone: {names}")
        counts["passed"] += bad
        failed, bad = {}, 0
    took_s = time.monotonic() - began_s
    outcome = f"failed: {', '.join(failed)}" if failed else "passed"
    print(f"all tests: {outcome} ({took_s:.0f} s)")
    print(f"{counts['passed']} passed, {bad} failed, {counts['skipped']} skipped", flush=True)
    return 1 if failed else 0


def pass_alone(failed: list[list[str]]) -> bool:
    """Whether tests that failed pass when nothing else runs on the machine, portion by portion."""
    if not all(failed) or sum(map(len, failed)) > _AGAIN_MAX:
        return False
    for tests in failed:
        print(f"\n===== once more, alone: {', '.join(tests)}", flush=True)
        if subprocess.run(pytest("-q", *tests), cwd=ROOT).returncode:
            return False
    return True


def portions() -> dict[str, list[str]]:
    """Every test file once."""
    files: dict[str, list[str]] = {name: [] for name in (*PORTIONS, "the rest")}
    for path in sorted(TESTS.rglob("test_*.py")):
        file = str(path.relative_to(ROOT))
        if "node_modules" in path.parts or file.startswith(f"{ELSEWHERE}/"):
            continue
        fitting = [name for name in PORTIONS if f"{file}/".startswith(f"{name}/")]
        files[max(fitting, key=len, default="the rest")].append(file)
    return {name: those for name, those in files.items() if those}


def run_all(waiting: list[tuple[str, list[str]]]) -> Iterator[Running]:
    """Each as it ends."""
    under_way: list[Running] = []
    told_s = time.monotonic()
    try:
        while waiting or under_way:
            while waiting and len(under_way) < LANES:
                under_way.append(begin(*waiting.pop(0)))
            time.sleep(0.2)
            for running in [each for each in under_way if each.process.poll() is not None]:
                under_way.remove(running)
                yield running
            if time.monotonic() - told_s > _TELL_EVERY_S:
                told_s = time.monotonic()
                names = ", ".join(each.name for each in under_way)
                print(f"under way: {names}; {len(waiting)} to come", flush=True)
    finally:
        for running in under_way:
            running.process.terminate()  # an interrupt ends all
            running.process.wait()


def begin(name: str, files: list[str]) -> Running:
    said = tempfile.TemporaryFile()  # noqa: SIM115  # read when the process has ended
    process = subprocess.Popen(pytest("-q", *files), cwd=ROOT, stdout=said, stderr=said)
    return Running(name, process, said, time.monotonic())


def pytest(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "pytest", *arguments]


if __name__ == "__main__":
    sys.exit(main())
