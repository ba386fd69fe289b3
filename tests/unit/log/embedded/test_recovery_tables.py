"""docs/explanation/durability.md says what the code does: the tables have the same rows and
outcomes."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from penstock.log.embedded.partition_loader import HEADER_TABLE, HeaderRule
from penstock.log.embedded.recovery import RECOVERY_TABLE, RecoveryRule

PAGE = Path(__file__).parents[4] / "docs" / "explanation" / "durability.md"
WORDS = {True: "yes", False: "no", None: ""}


def row_of(label: str) -> list[str]:
    [line] = [line for line in PAGE.read_text().splitlines() if line.startswith(f"| {label} |")]
    return [cell.strip() for cell in line.strip("|").split("|")]


def expected(row: RecoveryRule | HeaderRule) -> list[str]:
    label, *facts, action, _ = msgspec.structs.astuple(row)
    return [label, *(WORDS[fact] for fact in facts), str(action.value)]


@pytest.mark.parametrize("row", RECOVERY_TABLE, ids=lambda row: row.label)
def test_page_has_the_recovery_table(row: RecoveryRule) -> None:
    assert row_of(row.label)[:6] == expected(row)


@pytest.mark.parametrize("row", HEADER_TABLE, ids=lambda row: row.label)
def test_page_has_the_header_table(row: HeaderRule) -> None:
    assert row_of(row.label)[:7] == expected(row)
