"""Tokens of the service's processes: private files, replaced long before they expire."""

from __future__ import annotations

import errno
import stat
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

import pytest
from tests.unit.management.conftest import AtOnce

from penstock.management.client import read_token
from penstock.management.permissions import ProcessRole
from penstock.model.clock import ManualClock
from penstock.model.errors import AuthFailed, ConfigurationError
from penstock.service import admin_tokens
from penstock.service.admin_tokens import (
    PROCESS_LIFETIME_S,
    RENEW_AFTER_S,
    ProcessTokens,
    ServiceTokens,
)
from penstock.service.data_directory import DataDirectory

CAPTURE, PORTAL = ProcessRole.CAPTURE, ProcessRole.PORTAL


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def service(tmp_path: Path, clock: ManualClock) -> ServiceTokens:
    return ServiceTokens(DataDirectory(tmp_path), clock)


@pytest.fixture
def tokens(tmp_path: Path, clock: ManualClock, service: ServiceTokens) -> ProcessTokens:
    return made(tmp_path, clock, service)


def made(path: Path, clock: ManualClock, service: ServiceTokens) -> ProcessTokens:
    executor: Executor = AtOnce()
    return ProcessTokens(path, service, clock, executor, [CAPTURE, PORTAL])


def test_files_are_private_and_name_the_role(
    tmp_path: Path, tokens: ProcessTokens, service: ServiceTokens
) -> None:
    tokens.write()
    assert sorted(each.name for each in tmp_path.glob("*.token*")) == [
        "capture.token",
        "portal.token",
    ]
    for role in (CAPTURE, PORTAL):
        file = tokens.file(role)
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert service.verify(read_token(file)) == (role.lower(), (role.value,))


async def test_token_is_replaced_after_twenty_minutes(
    clock: ManualClock, tokens: ProcessTokens, service: ServiceTokens
) -> None:
    file = tokens.file(CAPTURE)
    tokens.write()
    first, inode = read_token(file), file.stat().st_ino
    clock.advance(RENEW_AFTER_S * 1000 - 1)
    assert await tokens.renew() is None
    assert read_token(file) == first
    clock.advance(1)
    await tokens.renew()
    second = read_token(file)
    assert second != first
    assert file.stat().st_ino != inode  # another file in its place: no reader sees half of one
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert service.verify(first)[0] == service.verify(second)[0] == "capture"


def test_lost_token_is_worth_an_hour_at_most(
    clock: ManualClock, tokens: ProcessTokens, service: ServiceTokens
) -> None:
    tokens.write()
    lost = [read_token(tokens.file(role)) for role in (CAPTURE, PORTAL)]
    clock.advance(PROCESS_LIFETIME_S * 1000 - 1000)
    for token in lost:
        service.verify(token)
    clock.advance(1000)
    for token in lost:
        with pytest.raises(AuthFailed, match="expired"):
            service.verify(token)
    assert PROCESS_LIFETIME_S == 3600


async def test_clock_that_was_set_back_and_file_that_is_gone_get_a_new_token(
    tmp_path: Path, clock: ManualClock, tokens: ProcessTokens, service: ServiceTokens
) -> None:
    tokens.write()
    first = read_token(tokens.file(PORTAL))
    earlier = ManualClock(clock.now_ms() - 86_400_000)
    back = ServiceTokens(DataDirectory(tmp_path), earlier)
    clock._now_ms = earlier.now_ms()
    await tokens.renew()
    second = read_token(tokens.file(PORTAL))
    assert second != first
    assert back.verify(second)[0] == "portal"
    tokens.file(PORTAL).unlink()
    await tokens.renew()
    assert read_token(tokens.file(PORTAL)) != second


async def test_failure_leaves_the_old_token_and_is_tried_again(
    clock: ManualClock, tokens: ProcessTokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens.write()
    first = read_token(tokens.file(CAPTURE))
    clock.advance(RENEW_AFTER_S * 1000)

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(admin_tokens, "write_file_atomically", full)
        with pytest.raises(OSError, match="No space"):
            await tokens.renew()
    assert read_token(tokens.file(CAPTURE)) == first
    await tokens.renew()
    assert read_token(tokens.file(CAPTURE)) != first


def test_files_go_with_the_service(tmp_path: Path, tokens: ProcessTokens) -> None:
    tokens.write()
    tokens.remove()
    tokens.remove()
    assert list(tmp_path.glob("*.token*")) == []
    with pytest.raises(ConfigurationError, match=r"capture\.token cannot be read"):
        read_token(tokens.file(CAPTURE))
