"""Ordinary messages of one socket read, coalesced."""

from __future__ import annotations

import pytest

from penstock.kernels import KernelError, KeyConflict, Publication, RefusedEvent, split_singles


def raw(*parts: str | bytes) -> bytes:
    """Bytes from hexadecimal text and plain bytes, in the order in which they are written."""
    return b"".join(bytes.fromhex(part) if isinstance(part, str) else part for part in parts)


HELLO = raw("00 53 75 a0 05", b"hello")
KEY_A = raw("00 53 72 c1 19 02 a3 13", b"x-opt-partition-key", "a1 01", b"a")
KEY_B = raw("00 53 72 c1 19 02 a3 13", b"x-opt-partition-key", "a1 01", b"b")
# As Qpid Proton writes it: header, properties with a message-id, a string as body.
PROTON = raw("00 53 70 c0 02 01 41 00 53 73 c0 05 01 a1 02", b"id", "00 53 77 a1 02", b"hi")
BROKEN = raw("00 53 75 a0 09", b"hello")


def wrapped(message: bytes) -> bytes:
    if len(message) < 256:
        return raw("00 53 75 a0", bytes((len(message),)), message)
    return raw("00 53 75 b0", len(message).to_bytes(4, "big"), message)


def split(*messages: bytes, publisher: str | None = None) -> list[Publication | RefusedEvent]:
    """Lay the messages out with foreign bytes between, as frames do."""
    data, bounds = b"", []
    for message in messages:
        data += b"\x00\x53\x75\xa0\xff"
        bounds += [len(data), len(data) + len(message)]
        data += message
    return split_singles(data, bounds, publisher=publisher)


def producer(number: int, key: bytes = b"") -> bytes:
    pairs = raw(
        key[6:],
        "a3 19", b"com.microsoft:producer-id", "55 07",
        "a3 1c", b"com.microsoft:producer-epoch", "61 00 02",
        "a3 26", b"com.microsoft:producer-sequence-number", "71", number.to_bytes(4, "big"),
    )  # fmt: skip
    count = 8 if key else 6
    return raw("00 53 72 c1", bytes((len(pairs) + 1, count)), pairs, HELLO)


def test_nothing_gives_nothing() -> None:
    assert split() == []


def test_single_message_becomes_one_wrapped_event() -> None:
    assert split(HELLO) == [
        Publication(raw("00 53 75 a0 0a 00 53 75 a0 05", b"hello"), 1, None, None)
    ]


def test_proton_single_is_kept_verbatim() -> None:
    assert split(PROTON) == [Publication(wrapped(PROTON), 1, None, None)]


def test_message_of_four_bytes_at_the_very_end_is_taken() -> None:
    null = raw("00 53 77 40")

    assert split(null) == [Publication(wrapped(null), 1, None, None)]


@pytest.mark.parametrize("size", [0, 1, 3, 250, 251, 255, 256, 5000])
def test_messages_of_every_length_are_wrapped_in_the_shorter_form(size: int) -> None:
    message = wrapped(bytes(size))

    assert split(message, message) == [Publication(wrapped(message) * 2, 2, None, None)]


def test_neighbours_with_the_same_key_share_a_publication() -> None:
    first, second, third = KEY_A + HELLO, KEY_A + PROTON[7:], KEY_B + HELLO

    assert split(HELLO, HELLO, first, second, third, HELLO) == [
        Publication(wrapped(HELLO) * 2, 2, None, None),
        Publication(wrapped(first) + wrapped(second), 2, "a", None),
        Publication(wrapped(third), 1, "b", None),
        Publication(wrapped(HELLO), 1, None, None),
    ]


def test_malformed_message_is_refused_in_its_place_and_hurts_no_neighbour() -> None:
    one, refusal, other = split(HELLO, BROKEN, HELLO)

    assert one == other == Publication(wrapped(HELLO), 1, None, None)
    assert isinstance(refusal, RefusedEvent)
    assert refusal.count == 1
    assert isinstance(refusal.error, KernelError)


def test_each_malformed_message_has_its_own_refusal() -> None:
    kinds = [type(part) for part in split(BROKEN, HELLO, b"\x00", b"\x00\x53", b"\xff" * 9)]

    assert kinds == [RefusedEvent, Publication, RefusedEvent, RefusedEvent, RefusedEvent]


def test_message_without_a_section_is_an_event_without_body() -> None:
    assert split(b"") == [Publication(wrapped(b"\x00\x53\x72\xc1\x01\x00"), 1, None, None)]


def test_body_of_null_is_kept() -> None:
    null = b"\x00\x53\x75\x40"
    assert split(null) == [Publication(wrapped(null), 1, None, None)]


def test_consecutive_producer_numbers_share_a_publication() -> None:
    parts = split(producer(4), producer(5), producer(7), HELLO, producer(8), producer(9))

    assert [(part.count, part.producer) for part in parts if isinstance(part, Publication)] == [
        (2, (7, 2, 4, 5)),
        (1, (7, 2, 7, 7)),
        (1, None),
        (2, (7, 2, 8, 9)),
    ]


def test_producer_numbers_do_not_run_over_a_change_of_key() -> None:
    parts = split(producer(4, KEY_A), producer(5, KEY_A), producer(6, KEY_B))

    assert [(part.count, part.producer) for part in parts if isinstance(part, Publication)] == [
        (2, (7, 2, 4, 5)),
        (1, (7, 2, 6, 6)),
    ]


def test_publisher_is_the_key_of_all() -> None:
    stamp = raw(
        "00 53 72 c1 2d 04 a3 13", b"x-opt-partition-key", "a1 01", b"a",
        "a3 0f", b"x-opt-publisher", "a1 01", b"a",
    )  # fmt: skip

    same, conflict, again = split(HELLO, KEY_A + HELLO, KEY_B + HELLO, HELLO, publisher="a")

    assert same == Publication(wrapped(stamp + HELLO) * 2, 2, "a", None)
    assert isinstance(conflict, RefusedEvent)
    assert isinstance(conflict.error, KeyConflict)
    assert again == Publication(wrapped(stamp + HELLO), 1, "a", None)


def test_noncanonical_message_is_rewritten() -> None:
    delivery = raw("00 53 71 c1 01 00")

    assert split(HELLO + delivery, HELLO) == [
        Publication(wrapped(delivery + HELLO) + wrapped(HELLO), 2, None, None)
    ]


def test_publication_is_closed_when_it_is_long_enough_for_a_record() -> None:
    large = wrapped(bytes(300_000))
    parts = split(*[large] * 9)

    assert [part.count for part in parts] == [4, 4, 1]


def test_publication_is_closed_when_it_holds_as_many_events_as_a_batch_may() -> None:
    null = raw("00 53 77 40")
    parts = split_singles(null, [0, 4] * 70_000)

    assert sum(part.count for part in parts) == 70_000
    assert max(part.count for part in parts) <= 65_536


def test_small_messages_count_as_more_so_that_a_publication_has_few_enough_events() -> None:
    data = raw("00 53 75 a0 01", b"x") * 60_000
    bounds = [position for start in range(0, len(data), 6) for position in (start, start + 6)]
    counts = [publication.count for publication in split_singles(data, bounds)]
    assert counts == [47_663, 12_337]  # 1 MB, each message counting 16 bytes more than it has


def test_bounds_outside_the_data_are_refused() -> None:
    for bounds in ([0, 11], [-1, 5]):
        with pytest.raises(KernelError, match="bounds"):
            split_singles(HELLO, bounds)


@pytest.mark.parametrize("message", [HELLO, KEY_A + HELLO, PROTON, producer(3)])
def test_message_cut_anywhere_is_refused_or_shorter_and_its_neighbours_stay(message: bytes) -> None:
    for cut in range(len(message)):
        parts = split(HELLO, message[:cut], HELLO)

        assert sum(part.count for part in parts) == 3
        for part in parts:
            if isinstance(part, Publication):
                assert message not in part.sections or message == HELLO
