"""The service's keeper: committed before it is told, one flush for many, no wait on the loop."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from penstock.checkpoints import CheckpointStoreUnavailable
from penstock.checkpoints.server_store import ServerCheckpointStore
from penstock.checkpoints.sqlite_file import CheckpointFile
from penstock.model import limits
from penstock.model.checkpoints import Checkpoint, Claim
from penstock.model.clock import ManualClock
from penstock.model.errors import OperationCancelled, ServerBusy


def open_keeper(folder: Path) -> ServerCheckpointStore:
    return ServerCheckpointStore(
        folder / "checkpoints.sqlite",
        now_ms=ManualClock().now_ms,
        loop=asyncio.get_running_loop(),
    )


def claim(owner: str = "a", etag: str | None = None) -> list[Claim]:
    return [Claim(partition_id="0", owner_id=owner, etag=etag)]


def saved(number: int) -> list[Checkpoint]:
    return [Checkpoint(partition_id="0", offset=str(number), sequence_number=number)]


class SlowDisk:
    """Writes wait until they are let through; counts transactions."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go = threading.Event()
        self.transactions: list[int] = []
        self.failing: Exception | None = None
        write = CheckpointFile.write

        def slowly(file: CheckpointFile, works: list[object]) -> object:
            assert self.go.wait(20)
            self.transactions.append(len(works))
            if self.failing is not None:
                raise self.failing
            return write(file, works)  # type: ignore[arg-type]  # passed on as it came

        monkeypatch.setattr(CheckpointFile, "write", slowly)


async def test_records_survive_a_restart(tmp_path: Path) -> None:
    keeper = open_keeper(tmp_path)
    (won,) = await keeper.claim("hub", "Readers", claim())
    await keeper.save("hub", "readers", saved(5))
    await keeper.close()
    again = open_keeper(tmp_path)
    assert again.ownerships("hub", "READERS") == [won]
    assert [each.sequence_number for each in again.checkpoints("hub", "readers")] == [5]
    assert again.ownerships("other", "readers") == []
    await again.close()


async def test_nothing_is_shown_before_it_is_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper, disk = open_keeper(tmp_path), SlowDisk(monkeypatch)
    saving = asyncio.create_task(keeper.save("hub", "g", saved(5)))
    await asyncio.sleep(0)
    assert keeper.checkpoints("hub", "g") == []
    disk.go.set()
    await saving
    assert len(keeper.checkpoints("hub", "g")) == 1
    await keeper.close()


async def test_what_comes_while_the_disk_is_busy_shares_one_flush(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper, disk = open_keeper(tmp_path), SlowDisk(monkeypatch)
    savings = [asyncio.create_task(keeper.save("hub", "g", saved(0)))]
    await asyncio.sleep(0)
    await asyncio.sleep(0)  # the first one is on its way to the disk
    savings += [asyncio.create_task(keeper.save("hub", "g", saved(n))) for n in range(1, 31)]
    await asyncio.sleep(0)
    disk.go.set()
    await asyncio.gather(*savings)
    assert disk.transactions == [1, 30]
    assert keeper.checkpoints("hub", "g")[0].sequence_number == 30
    await keeper.close()


async def test_a_failed_flush_is_told_and_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper, disk = open_keeper(tmp_path), SlowDisk(monkeypatch)
    disk.go.set()
    disk.failing = CheckpointStoreUnavailable("the disk is full")
    with pytest.raises(CheckpointStoreUnavailable):
        await keeper.claim("hub", "g", claim())
    assert keeper.ownerships("hub", "g") == []
    disk.failing = None
    assert len(await keeper.claim("hub", "g", claim())) == 1
    await keeper.close()


async def test_a_caller_that_leaves_does_not_undo_its_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper, disk = open_keeper(tmp_path), SlowDisk(monkeypatch)
    saving = asyncio.create_task(keeper.save("hub", "g", saved(5)))
    await asyncio.sleep(0)
    saving.cancel()
    disk.go.set()
    await keeper.close()
    assert saving.cancelled()
    assert len(keeper.checkpoints("hub", "g")) == 1


async def test_writes_that_wait_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "CHECKPOINT_WAITING_MAX", 2)
    keeper, disk = open_keeper(tmp_path), SlowDisk(monkeypatch)
    waiting = [asyncio.create_task(keeper.save("hub", "g", saved(n))) for n in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(ServerBusy):
        await keeper.save("hub", "g", saved(9))
    disk.go.set()
    await asyncio.gather(*waiting)
    await keeper.close()


async def test_a_closed_keeper_takes_nothing(tmp_path: Path) -> None:
    keeper = open_keeper(tmp_path)
    await keeper.close()
    with pytest.raises(OperationCancelled):
        await keeper.save("hub", "g", saved(1))


async def test_records_end_with_their_group(tmp_path: Path) -> None:
    keeper = open_keeper(tmp_path)
    for group in ("stays", "goes"):
        await keeper.claim("hub", group, claim())
        await keeper.save("hub", group, saved(1))
    keeper.keep_only({("hub", "Stays")})
    assert (keeper.checkpoints("hub", "goes"), keeper.ownerships("hub", "goes")) == ([], [])
    await keeper.close()
    again = open_keeper(tmp_path)
    assert len(again.checkpoints("hub", "stays")) == 1
    assert (again.checkpoints("hub", "goes"), again.ownerships("hub", "goes")) == ([], [])
    await again.close()


async def test_a_write_on_its_way_ends_with_its_group_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper, disk = open_keeper(tmp_path), SlowDisk(monkeypatch)
    saving = asyncio.create_task(keeper.save("hub", "goes", saved(1)))
    await asyncio.sleep(0)
    await asyncio.sleep(0)  # on its way to the disk
    keeper.keep_only(set())
    disk.go.set()
    await saving
    await keeper.close()
    assert keeper.checkpoints("hub", "goes") == []
    again = open_keeper(tmp_path)
    assert again.checkpoints("hub", "goes") == []
    await again.close()


async def test_failure_after_the_flush_reaches_its_callers_and_later_writes_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writing task that ended would leave every later caller waiting for ever."""
    keeper = open_keeper(tmp_path)

    def fail(*args: object) -> None:
        raise RuntimeError("unexpected")

    with monkeypatch.context() as patched:
        patched.setattr(keeper, "_apply", fail)
        with pytest.raises(RuntimeError):
            await keeper.save("h", "g", saved(1))
    async with asyncio.timeout(30):
        await keeper.save("h", "g", saved(2))
    assert [each.sequence_number for each in keeper.checkpoints("h", "g")] == [2]
    await keeper.close()
