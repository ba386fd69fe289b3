"""The verdict of `make bench ARGS="--against REF"`."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from benchmarks import against
from benchmarks.against import Verdict

KEY = ("publish 1 KB batches", "events_per_s")


@pytest.mark.parametrize(
    ("noise", "ratios", "verdict", "code"),
    [
        ([1.0, 1.0, 1.0], [0.98, 0.97, 0.90], Verdict.UNCHANGED, 0),
        ([1.0, 1.0, 1.0], [0.98, 0.96, 0.90], Verdict.WORSE, 1),
        ([1.04, 0.96, 1.0], [0.93, 0.92, 0.90], Verdict.UNCHANGED, 0),
        ([1.04, 0.96, 1.0], [0.93, 0.91, 0.90], Verdict.WORSE, 1),
        ([1.06, 0.94, 1.0], [0.50, 0.50, 0.50], Verdict.NOISY, 2),
        ([1.0, 1.0, 1.0], [1.5, 1.5, 1.5], Verdict.UNCHANGED, 0),
    ],
)
def test_verdict_allows_three_percent_or_twice_the_noise(
    noise: list[float], ratios: list[float], verdict: Verdict, code: int
) -> None:
    comparisons = against.judge({KEY: noise}, {KEY: ratios})
    assert [comparison.verdict for comparison in comparisons] == [verdict]
    assert against.exit_code(comparisons) == code


def test_a_worse_figure_counts_beside_a_noisy_one() -> None:
    other = ("deliver 1 KB", "memory_mb")
    comparisons = against.judge({KEY: [1.2, 0.8, 1.0], other: [1.0]}, {KEY: [1.0], other: [0.5]})
    assert against.exit_code(comparisons) == 1
    assert against.to_table(comparisons, "main").row_count == 2


def test_reference_is_built_from_its_own_files(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        identity = ("-c", "user.name=t", "-c", "user.email=t@example.org")
        subprocess.run(["git", "-C", str(tmp_path), *identity, *arguments], check=True)

    git("init", "-q")
    makefile = tmp_path / "Makefile"
    makefile.write_text("setup:\n\tmkdir -p .venv/bin && echo first > .venv/bin/penstock\n")
    git("add", ".")
    git("commit", "-qm", "first")
    makefile.write_text("setup:\n\tfalse\n")
    git("commit", "-qam", "second")
    assert against.build(tmp_path, "HEAD~1").read_text() == "first\n"
    assert against.build(tmp_path, "HEAD~1").read_text() == "first\n"  # built before
    with pytest.raises(subprocess.CalledProcessError):
        against.build(tmp_path, "HEAD")
