"""Spark's checkpoint of a capture query: torn ones are recognized and set aside."""

from __future__ import annotations

import json
import logging
import struct
import zlib
from pathlib import Path

import pytest

from penstock.capture.windows import WindowStart
from penstock.spark.capture.query_checkpoint import find_problem, set_aside_if_unusable


def write(file: Path, text: str) -> None:
    """As Hadoop writes a file: with its checksums beside it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    data = text.encode()
    chunks = [data[at : at + 512] for at in range(0, len(data), 512)]
    sums = b"".join(struct.pack(">I", zlib.crc32(chunk)) for chunk in chunks)
    file.with_name(f".{file.name}.crc").write_bytes(b"crc\0" + struct.pack(">I", 512) + sums)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """Two batches, of which the second is not committed; places as its offsets have them."""
    folder = tmp_path / "checkpoint"
    write(folder / "metadata", '{"id":"d9c86490-788a-4254-8c52-2e94a78283a1"}')
    for batch in (0, 1):
        offset = {"cuts": {}, "places": {"0": [batch * 10, -1, -1, 7, batch]}, "settings": "{}"}
        progress = {"batchWatermarkMs": 0, "conf": {"a": "b" * 600}}
        lines = ("v1", json.dumps(progress), json.dumps(offset))
        write(folder / "offsets" / str(batch), "\n".join(lines))
    write(folder / "commits" / "0", 'v1\n{"nextBatchWatermarkMs":0}')
    return folder


def place(window: int) -> dict[str, WindowStart]:
    return {"0": WindowStart(window * 10, window=window)}


@pytest.mark.parametrize("stored", [{}, place(0), place(1)], ids=["none", "behind", "level"])
def test_whole_checkpoint_is_used(checkpoint: Path, stored: dict[str, WindowStart]) -> None:
    assert find_problem(checkpoint, stored) is None


def test_missing_checkpoint_is_no_problem(tmp_path: Path) -> None:
    assert find_problem(tmp_path / "checkpoint", place(3)) is None


@pytest.mark.parametrize("name", ["metadata", "offsets/1", "offsets/0", "commits/0"])
@pytest.mark.parametrize(
    "content",
    [b"", b"v1\n", b"\0" * 300, b'v1\n{"a"', b"v2\n{}\n{}", b"\xff\xfe"],
    ids=["empty", "version", "zeros", "torn", "unknown", "binary"],
)
@pytest.mark.parametrize("has_checksum", [True, False])
def test_torn_file_is_named(
    checkpoint: Path, name: str, content: bytes, has_checksum: bool
) -> None:
    file = checkpoint / name
    file.write_bytes(content)
    if not has_checksum:
        file.with_name(f".{file.name}.crc").unlink()
    assert str(file) in (find_problem(checkpoint, {}) or "")


def test_changed_byte_is_found_by_the_checksum(checkpoint: Path) -> None:
    file = checkpoint / "offsets" / "1"
    file.write_text(file.read_text().replace("[10,", "[11,"))
    assert str(file) in (find_problem(checkpoint, {}) or "")


@pytest.mark.parametrize("content", [b"", b"crc", b"\0" * 20, b"crc\0\0\0\0\0"])
def test_torn_checksum_of_a_whole_file_is_removed(checkpoint: Path, content: bytes) -> None:
    sums = checkpoint / "offsets" / ".1.crc"
    sums.write_bytes(content)
    assert find_problem(checkpoint, place(1)) is None
    assert not sums.exists()


def test_entries_that_the_state_has_and_the_checkpoint_lost_are_found(checkpoint: Path) -> None:
    problem = find_problem(checkpoint, place(2))
    assert problem is not None and "newer entries were lost" in problem
    for batch in (0, 1):
        (checkpoint / "offsets" / str(batch)).unlink()
    problem = find_problem(checkpoint, place(2))
    assert problem is not None and "has no entry" in problem


def test_offsets_of_another_shape_are_torn(checkpoint: Path) -> None:
    write(checkpoint / "offsets" / "2", 'v1\n{}\n{"places": [1]}')
    assert "offsets/2" in (find_problem(checkpoint, {}) or "")


def test_unusable_checkpoint_is_set_aside_and_reported(
    checkpoint: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert set_aside_if_unusable(checkpoint, place(1)) is None
    aside = checkpoint.with_name("checkpoint.unusable")
    for _ in range(2):  # the one of an earlier crash makes room
        checkpoint.mkdir(exist_ok=True)
        write(checkpoint / "offsets" / "0", "")
        with caplog.at_level(logging.WARNING):
            assert "offsets/0" in (set_aside_if_unusable(checkpoint, place(1)) or "")
        assert not checkpoint.exists() and (aside / "offsets" / "0").exists()
    assert "capture continues from its state" in caplog.text
