"""Partition keys and turns (protocol.md 8)."""

from __future__ import annotations

import pytest

from penstock.model.partitioner import RoundRobin, hash16, partition_for_key

# key, hash16, and the partition of 1, 2, 4, 8, 16 and 32: protocol.md 8.2, all rows.
VECTORS = [
    ("7", -15263, (0, 1, 3, 7, 15, 31)),
    ("131", 30562, (0, 0, 2, 2, 2, 2)),
    ("7149682", -9364, (0, 0, 0, 4, 4, 20)),
    ("7149583486996073602", 12977, (0, 1, 1, 1, 1, 17)),
    ("FWfAT", -22341, (0, 1, 1, 5, 5, 5)),
    ("key1", 2075, (0, 1, 3, 3, 11, 27)),
    ("partitionKey", 16393, (0, 1, 1, 1, 9, 9)),
    ("alphabet", -23478, (0, 0, 2, 6, 6, 22)),
    ("a", -16220, (0, 0, 0, 4, 12, 28)),
    ("", 0, (0, 0, 0, 0, 0, 0)),
    ("device-1", 26788, (0, 0, 0, 4, 4, 4)),
    ("0123456789ab", -17054, (0, 0, 2, 6, 14, 30)),
    ("0123456789abc", -4167, (0, 1, 3, 7, 7, 7)),
    ("$0cb", 26269, (0, 1, 1, 5, 13, 29)),
    ("this-is-a-key-1", 26223, (0, 1, 3, 7, 15, 15)),
    ("ünïcode", -27106, (0, 0, 2, 2, 2, 2)),
    ("日本語", -23353, (0, 1, 1, 1, 9, 25)),
    ("é", -24812, (0, 0, 0, 4, 12, 12)),
    ("abcé", -12593, (0, 1, 1, 1, 1, 17)),
]
NET_HASHES = [
    ("sOdeEAsyQoEuEFPGerWO", -6503),
    ("!c*_!I@1^c", 15372),
    ("p4*!jioeO/z-!-;w:dh", -3104),
    ("-4189260826195535198", 453),
]


@pytest.mark.parametrize(("key", "expected"), [(k, h) for k, h, _ in VECTORS] + NET_HASHES)
def test_hash16_equals_the_reference_sdks(key: str, expected: int) -> None:
    assert hash16(key) == expected


@pytest.mark.parametrize(("key", "partitions"), [(k, p) for k, _, p in VECTORS])
def test_partition_for_key_equals_the_reference_sdks(key: str, partitions: tuple[int, ...]) -> None:
    counts = (1, 2, 4, 8, 16, 32)
    assert tuple(partition_for_key(key, count) for count in counts) == partitions


def test_partition_for_key_stays_in_range_for_keys_of_every_length() -> None:
    for length in range(129):
        for count in (1, 2, 3, 7, 32):
            assert 0 <= partition_for_key("ß" * length, count) < count


def test_partition_for_key_takes_text_that_is_no_valid_unicode() -> None:
    assert 0 <= partition_for_key("\ud800", 4) < 4


def test_round_robin_gives_every_partition_its_turn() -> None:
    turns = RoundRobin(3, lambda index: False)
    assert [turns.next() for _ in range(7)] == [0, 1, 2, 0, 1, 2, 0]


def test_round_robin_skips_partitions_whose_log_has_failed() -> None:
    failed = {1}
    turns = RoundRobin(3, failed.__contains__)
    assert [turns.next() for _ in range(4)] == [0, 2, 0, 2]
    failed.clear()
    assert [turns.next() for _ in range(4)] == [0, 1, 2, 0]


def test_round_robin_still_answers_when_all_logs_have_failed() -> None:
    turns = RoundRobin(2, lambda index: True)
    assert {turns.next() for _ in range(4)} <= {0, 1}
