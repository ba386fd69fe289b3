"""What was revoked stays revoked: over a restart, a damaged file, a full disk, a full table."""

from __future__ import annotations

import logging
import stat
from pathlib import Path

import pytest

from penstock.portal import revocations
from penstock.portal.revocations import Revocations

NOW_MS = 1_700_000_000_000
LATER_MS = NOW_MS + 3_600_000


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "portal.revoked"


def revoke(kept: Revocations, entry_id: str, issued_ms: int = NOW_MS) -> bool:
    return kept.revoke(entry_id, issued_ms=issued_ms, expires_ms=LATER_MS, now_ms=NOW_MS)


def test_entry_outlives_a_restart_in_a_private_file(file: Path) -> None:
    first = Revocations(file, now_ms=NOW_MS)
    assert revoke(first, "a")
    assert not revoke(first, "a")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    second = Revocations(file, now_ms=NOW_MS)
    assert second.is_revoked("a", issued_ms=NOW_MS)
    assert not second.is_revoked("b", issued_ms=NOW_MS)
    assert not revoke(second, "a")


def test_expired_entry_is_forgotten_at_a_restart(file: Path) -> None:
    assert revoke(Revocations(file, now_ms=NOW_MS), "a")
    assert not Revocations(file, now_ms=LATER_MS).is_revoked("a", issued_ms=NOW_MS)
    assert file.read_bytes() == b""


@pytest.mark.parametrize("at", [0, 3, 20, -2])
def test_damaged_file_ends_everything_issued_before(
    file: Path, at: int, caplog: pytest.LogCaptureFixture
) -> None:
    assert revoke(Revocations(file, now_ms=NOW_MS), "entry")
    content = bytearray(file.read_bytes())
    content[at] ^= 1
    file.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        kept = Revocations(file, now_ms=NOW_MS + 1)
    assert str(file) in caplog.text
    for again in (kept, Revocations(file, now_ms=NOW_MS + 2)):  # the decision is on disk as well
        assert again.is_revoked("entry", issued_ms=NOW_MS)
        assert again.is_revoked("another", issued_ms=NOW_MS)
        assert not again.is_revoked("another", issued_ms=NOW_MS + 2)


def test_file_that_cannot_be_written_revokes_until_the_restart(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "missing" / "portal.revoked"
    kept = Revocations(file, now_ms=NOW_MS)
    with caplog.at_level(logging.WARNING):
        assert revoke(kept, "a")
    assert kept.is_revoked("a", issued_ms=NOW_MS)
    assert str(file) in caplog.text


def test_full_table_revives_nothing(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(revocations, "ENTRIES_MAX", 10)
    kept = Revocations(file, now_ms=NOW_MS)
    for number in range(50):
        assert revoke(kept, f"entry-{number}", issued_ms=NOW_MS + number)
    for again in (kept, Revocations(file, now_ms=NOW_MS)):
        assert all(again.is_revoked(f"entry-{n}", issued_ms=NOW_MS + n) for n in range(50))
        assert not again.is_revoked("new", issued_ms=NOW_MS + 50)
    assert len(file.read_bytes().splitlines()) <= 20
