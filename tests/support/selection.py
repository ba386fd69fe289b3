"""Which tests run, in which order, on which worker, and the summary at the end of the run."""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

# The parts of `make test-full`.
PARTS = ("clients", "spark", "kafka", "cluster", "faults", "documents")
# Folders whose tests run on one worker, one after the other: Spark gives a Python process ten
# seconds to answer, which several sessions at once do not leave it on two cores; a browser and a
# disk that loses power want their time too. Elsewhere a file is the unit. The longest first.
GROUPS = ("spark", "system/portal", "faults")
# Files that take longest among the others, measured (the summary of a run names them); they start
# before the rest.
LONG_FILES: tuple[str, ...] = (
    "unit/log/embedded/test_histories.py",
    "compatibility/test_python_processor.py",
    "compatibility/test_java.py",
    "system/test_processor.py",
)
# Beside Spark's tests, which take longest of all, the others run at a lower priority.
NICENESS = 3
LONG_GROUP_S = 30


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("penstock")
    group.addoption("--full", choices=PARTS, help="run only the long tests of this part")
    group.addoption("--long", action="store_true", help="with --full: the largest counts")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Without --full, tests marked `full` are left out. With it, only tests of that part run."""
    part = config.getoption("--full")
    selected = [item for item in items if _is_selected(item, part)]
    deselected = [item for item in items if not _is_selected(item, part)]
    config.hook.pytest_deselected(items=deselected)
    items[:] = sorted(selected, key=lambda item: _rank(item.nodeid))  # stable within a file


def _is_selected(item: pytest.Item, part: str | None) -> bool:
    full = [str(mark.args[0]) for mark in item.iter_markers("full")]
    sized = [str(mark.args[0]) for mark in item.iter_markers("sized")]
    unknown = {*full, *sized} - set(PARTS)
    assert not unknown, f"{item.nodeid}: {unknown} is not a part of make test-full: {PARTS}"
    return not full if part is None else part in full + sized


class GroupScheduling(LoadScopeScheduling):  # type: ignore[misc]  # untyped base
    """Hands a whole group to one worker, in the order of the collection."""

    def _split_scope(self, nodeid: str) -> str:
        return _group(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> GroupScheduling:
    return GroupScheduling(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """A worker keeps its priority while it runs Spark's tests."""
    is_worker = hasattr(item.config, "workerinput")
    if is_worker and _group(item.nodeid) != "spark" and os.nice(0) < NICENESS:
        os.nice(NICENESS - os.nice(0))


def _group(nodeid: str) -> str:
    file = nodeid.partition("::")[0].removeprefix("tests/")
    return next((group for group in GROUPS if file.startswith(group + "/")), file)


def _rank(nodeid: str) -> int:
    group, order = _group(nodeid), (*GROUPS, *LONG_FILES)
    return order.index(group) if group in order else len(order)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Minutes of each folder and of the longest groups, and each reason for a skip."""
    seconds: defaultdict[str, float] = defaultdict(float)
    of_group: defaultdict[str, float] = defaultdict(float)
    reasons: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                seconds["/".join(report.nodeid.split("/")[:2]).partition("::")[0]] += (
                    report.duration
                )
                of_group[_group(report.nodeid)] += report.duration
    for report in terminalreporter.stats.get("skipped", ()):
        text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        reasons[re.sub("^Skipped: ", "", text)] += 1
    if sum(seconds.values()) < 60 and not reasons:
        return
    terminalreporter.section("minutes per folder, over all workers")
    for folder, spent in sorted(seconds.items(), key=lambda pair: -pair[1]):
        terminalreporter.write_line(f"{spent / 60:6.1f}  {folder}")
    terminalreporter.section("minutes of the longest groups, each on one worker")
    for group, spent in sorted(of_group.items(), key=lambda pair: -pair[1]):
        if spent >= LONG_GROUP_S:
            terminalreporter.write_line(f"{spent / 60:6.1f}  {group}")
    terminalreporter.section("skipped, and why")
    for reason, count in reasons.most_common():
        terminalreporter.write_line(f"{count:6}  {reason}")
