"""Admin tokens that are refused before they expire."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.auth.admin_token import LIFETIME_S
from penstock.model.clock import ManualClock
from penstock.model.errors import AuthFailed, DataDirectoryError, QuotaExceeded
from penstock.service import admin_tokens
from penstock.service.admin_tokens import ServiceTokens
from penstock.service.data_directory import DataDirectory

if TYPE_CHECKING:
    from penstock.management.resources import AdminToken


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def started(path: Path, clock: ManualClock) -> ServiceTokens:
    return ServiceTokens(DataDirectory(path), clock)


def issued(tokens: ServiceTokens) -> AdminToken:
    return tokens.issue(subject="anna", role="Reader", lifetime_s=3600)


def test_revoked_token_is_refused_also_after_a_restart(tmp_path: Path, clock: ManualClock) -> None:
    tokens = started(tmp_path, clock)
    first, second = issued(tokens), issued(tokens)
    assert first.id != second.id
    assert tokens.verify(first.token) == ("anna", ("Reader",))
    tokens.revoke(first.id)
    for each in (tokens, started(tmp_path, clock)):
        with pytest.raises(AuthFailed, match="The token was revoked"):
            each.verify(first.token)
        assert each.verify(second.token)[0] == "anna"
        assert each.revoked() == [first.id]
    assert stat.S_IMODE((tmp_path / "admin.revoked").stat().st_mode) == 0o600


def test_id_is_forgotten_when_no_token_can_have_it(tmp_path: Path, clock: ManualClock) -> None:
    tokens = started(tmp_path, clock)
    tokens.revoke("a" * 32)
    clock.advance(LIFETIME_S * 1000)
    assert started(tmp_path, clock).revoked() == []
    tokens.revoke("b" * 32)
    assert started(tmp_path, clock).revoked() == ["b" * 32]


@pytest.mark.parametrize("content", [b"", b"[]", b'{"a": ', b"\xff"])
def test_damaged_list_stops_the_start(tmp_path: Path, clock: ManualClock, content: bytes) -> None:
    (tmp_path / "admin.revoked").write_bytes(content)
    with pytest.raises(DataDirectoryError, match=r"admin\.revoked"):
        started(tmp_path, clock)


def test_no_flipped_bit_makes_a_revoked_token_valid(tmp_path: Path, clock: ManualClock) -> None:
    tokens = started(tmp_path, clock)
    token = issued(tokens)
    tokens.revoke(token.id)
    file = tmp_path / "admin.revoked"
    whole = file.read_bytes()
    for at in range(len(whole)):
        for bit in range(8):
            flipped = bytearray(whole)
            flipped[at] ^= 1 << bit
            file.write_bytes(flipped)
            try:
                found = started(tmp_path, clock).revoked()
            except DataDirectoryError as error:
                assert str(file) in str(error), (at, bit)
            else:
                assert found == [token.id], (at, bit)


def test_list_of_a_version_without_checksum_is_read(tmp_path: Path, clock: ManualClock) -> None:
    until_s = clock.now_ms() // 1000 + 60
    (tmp_path / "admin.revoked").write_text(f'{{"{"a" * 32}": {until_s}}}')
    assert started(tmp_path, clock).revoked() == ["a" * 32]


def test_failure_to_write_revokes_nothing(tmp_path: Path, clock: ManualClock) -> None:
    tokens = started(tmp_path, clock)
    token = issued(tokens)
    (tmp_path / "admin.revoked").mkdir()  # cannot be replaced by a file
    with pytest.raises(DataDirectoryError, match="the token is not revoked"):
        tokens.revoke(token.id)
    assert tokens.verify(token.token)[0] == "anna"


def test_list_is_bounded(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin_tokens, "REVOKED_MAX", 2)
    tokens = started(tmp_path, clock)
    tokens.revoke("a" * 32)
    tokens.revoke("b" * 32)
    tokens.revoke("b" * 32)
    with pytest.raises(QuotaExceeded, match=r"remove admin\.secret"):
        tokens.revoke("c" * 32)
