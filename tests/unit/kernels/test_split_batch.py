"""Batches (message-format 0x80013700) as each client lays them out, byte by byte."""

from __future__ import annotations

import pytest

from penstock.kernels import KernelError, KeyConflict, Publication, split_batch


def raw(*parts: str | bytes) -> bytes:
    """Bytes from hexadecimal text and plain bytes, in the order in which they are written."""
    return b"".join(bytes.fromhex(part) if isinstance(part, str) else part for part in parts)


HELLO = raw("00 53 75 a0 05", b"hello")  # a message of one data section, 10 bytes
WORLD = raw("00 53 75 a0 06", b"world!")
KEY_A = raw("00 53 72 c1 19 02 a3 13", b"x-opt-partition-key", "a1 01", b"a")
KEY_B = raw("00 53 72 c1 19 02 a3 13", b"x-opt-partition-key", "a1 01", b"b")


def wrapped(message: bytes) -> bytes:
    assert len(message) < 256
    return raw("00 53 75 a0", bytes((len(message),)), message)


def section(body: bytes) -> bytes:
    if len(body) < 256:
        return wrapped(body)
    return raw("00 53 75 b0", len(body).to_bytes(4, "big"), body)


def split(data: bytes, publisher: str | None = None) -> Publication:
    return split_batch(data, 0, len(data), publisher=publisher)


def test_batch_of_plain_events_is_one_slice_of_the_input() -> None:
    data = raw(
        "00 53 75 a0 0a 00 53 75 a0 05", b"hello", "00 53 75 a0 0b 00 53 75 a0 06", b"world!"
    )

    assert split(data) == Publication(data, 2, None, None)


def test_batch_of_large_events_keeps_their_long_lengths() -> None:
    body = b"x" * 1024
    data = raw("00 53 75 b0 00 00 04 08 00 53 75 b0 00 00 04 00", body) * 3

    assert split(data) == Publication(data, 3, None, None)


def test_batch_keeps_long_lengths_of_short_events_as_the_client_chose() -> None:
    data = raw("00 53 75 b0 00 00 00 0d 00 53 75 b0 00 00 00 05", b"hello")

    assert split(data) == Publication(data, 1, None, None)


@pytest.mark.parametrize("size", [0, 1, 250, 251, 255, 256, 257])
def test_batch_keeps_events_of_every_length_around_the_short_form(size: int) -> None:
    body = bytes(size)
    inner = section(body)
    data = section(inner) * 2

    assert split(data) == Publication(data, 2, None, None)


def test_batch_is_taken_from_the_middle_of_a_buffer() -> None:
    data = wrapped(HELLO) + wrapped(WORLD)
    buffer = b"\x00\x53\x75" + data + wrapped(HELLO)

    assert split_batch(buffer, 3, 3 + len(data)) == Publication(data, 2, None, None)


def test_python_batch_with_key_goes_by_the_envelope_and_keeps_the_events() -> None:
    # header(durable=true) | annotations | data | data, each event with the same annotation.
    envelope = raw("00 53 70 c0 07 05 56 01 40 40 40 40", KEY_A)
    sections = wrapped(KEY_A + HELLO) + wrapped(KEY_A + WORLD)

    assert split(envelope + sections) == Publication(sections, 2, "a", None)


def test_javascript_batch_has_empty_header_and_properties_around() -> None:
    envelope = raw("00 53 70 45 00 53 72 c1 01 00 00 53 73 45")
    sections = wrapped(HELLO) + wrapped(WORLD)

    assert split(envelope + sections) == Publication(sections, 2, None, None)


def test_go_batch_repeats_the_first_message_on_its_envelope() -> None:
    envelope = raw(
        KEY_A,
        "00 53 73 c0 05 01 a1 02", b"id",
        "00 53 74 c1 09 02 a1 04", b"unit", "54 01",
    )  # fmt: skip
    sections = wrapped(KEY_A + raw("00 53 73 c0 05 01 a1 02", b"id") + HELLO)

    assert split(envelope + sections) == Publication(sections, 1, "a", None)


def test_envelope_behind_the_events_counts_as_well() -> None:
    data = wrapped(HELLO) + KEY_A + wrapped(WORLD) + raw("00 53 73 45")

    assert split(data) == Publication(wrapped(KEY_A + HELLO) + wrapped(KEY_A + WORLD), 2, "a", None)


def test_short_envelope_section_at_the_very_end_is_passed_over() -> None:
    for event in (HELLO, KEY_A + HELLO):
        data = wrapped(event) + raw("00 53 73 45")

        assert split(data).sections == wrapped(event)


def test_shortest_event_at_the_very_end_is_taken() -> None:
    data = wrapped(HELLO) + wrapped(raw("00 53 77 40"))

    assert split(data) == Publication(data, 2, None, None)


def test_envelope_sections_between_events_are_cut_out() -> None:
    data = wrapped(HELLO) + raw("00 53 70 45") + wrapped(WORLD)

    assert split(data) == Publication(wrapped(HELLO) + wrapped(WORLD), 2, None, None)


def test_key_of_the_first_event_routes_when_the_envelope_has_none() -> None:
    data = wrapped(KEY_A + HELLO) + wrapped(KEY_B + HELLO) + wrapped(HELLO)

    assert split(data) == Publication(data, 3, "a", None)


def test_key_of_the_envelope_replaces_another_and_fills_a_missing_one() -> None:
    sections = wrapped(KEY_B + HELLO) + wrapped(KEY_A + HELLO) + wrapped(HELLO)

    expected = wrapped(KEY_A + HELLO) * 3
    assert split(KEY_A + sections) == Publication(expected, 3, "a", None)


def test_key_of_the_envelope_stands_before_the_events_own_annotations() -> None:
    message = raw("00 53 72 c1 08 02 a3 03", b"own", "54 07", HELLO)

    expected = raw(
        "00 53 72 c1 20 04 a3 13", b"x-opt-partition-key", "a1 01", b"a",
        "a3 03", b"own", "54 07", HELLO,
    )  # fmt: skip
    assert split(KEY_A + wrapped(message)).sections == wrapped(expected)


def test_key_written_in_the_long_form_is_the_same_key() -> None:
    long = raw("00 53 72 c1 1c 02 a3 13", b"x-opt-partition-key", "b1 00 00 00 01", b"a")
    sections = wrapped(long + HELLO)

    assert split(KEY_A + sections) == Publication(sections, 1, "a", None)


@pytest.mark.parametrize("value", ["40", "54 07", "a3 01 61", "a0 01 61", "41"])
def test_key_that_is_no_string_is_ignored_and_not_given_to_readers(value: str) -> None:
    encoded = bytes.fromhex(value)
    size = bytes((22 + len(encoded),))
    annotations = raw("00 53 72 c1", size, "02 a3 13", b"x-opt-partition-key", encoded)

    publication = split(annotations + wrapped(annotations + HELLO))

    assert publication == Publication(wrapped(HELLO), 1, None, None)


def test_key_of_128_characters_is_taken_and_of_129_refused() -> None:
    def annotated(length: int) -> bytes:
        text = ("é" * length).encode()
        pairs = raw("a3 13", b"x-opt-partition-key", "b1", len(text).to_bytes(4, "big"), text)
        return raw("00 53 72 d1", (len(pairs) + 4).to_bytes(4, "big"), "00 00 00 02", pairs)

    assert split(annotated(128) + wrapped(HELLO)).partition_key == "é" * 128
    with pytest.raises(KernelError, match="129 characters: at most 128"):
        split(annotated(129) + wrapped(HELLO))


def test_empty_key_is_a_key() -> None:
    empty = raw("00 53 72 c1 18 02 a3 13", b"x-opt-partition-key", "a1 00")

    assert split(wrapped(empty + HELLO)).partition_key == ""


def test_delivery_annotations_written_last_are_put_in_order() -> None:
    delivery = raw("00 53 71 c1 08 02 a3 03", b"tag", "54 01")
    properties = raw("00 53 73 c0 05 01 a1 02", b"id")

    expected = wrapped(delivery + KEY_A + properties + HELLO)
    assert split(wrapped(KEY_A + properties + HELLO + delivery)) == Publication(
        expected, 1, "a", None
    )


def test_all_sections_in_reverse_are_put_in_order() -> None:
    parts = [
        raw("00 53 70 c0 02 01 41"),
        raw("00 53 71 c1 01 00"),
        raw("00 53 72 c1 01 00"),
        raw("00 53 73 45"),
        raw("00 53 74 c1 01 00"),
        raw("00 53 77 a1 02", b"hi"),
        raw("00 53 78 c1 01 00"),
    ]

    expected = b"".join(part for part in parts if part[2] != 0x72)
    assert split(wrapped(b"".join(reversed(parts)))).sections == wrapped(expected)


def test_string_keys_of_annotations_become_symbols_and_ulongs_stay() -> None:
    message = raw("00 53 72 c1 0d 06 a1 03", b"own", "54 07 53 09 41 44 40", HELLO)

    expected = raw("00 53 72 c1 0d 06 a3 03", b"own", "54 07 53 09 41 44 40", HELLO)
    assert split(wrapped(message)).sections == wrapped(expected)


def test_string_keys_become_symbols_of_the_shorter_form() -> None:
    def message(head: str, length: int) -> bytes:
        pair = raw(head, b"k" * length, "40")
        return raw("00 53 72 d1", (len(pair) + 4).to_bytes(4, "big"), "00 00 00 02", pair, HELLO)

    for given, expected, length in (
        ("b1 00 00 01 00", "b3 00 00 01 00", 256),
        ("b1 00 00 00 ff", "a3 ff", 255),
        ("a1 ff", "a3 ff", 255),
    ):
        data = section(message(given, length))
        assert split(data).sections == section(message(expected, length))


def test_string_key_of_the_partition_key_routes() -> None:
    strings = raw("00 53 72 c1 19 02 a1 13", b"x-opt-partition-key", "a1 01", b"a")

    assert split(wrapped(strings + HELLO)) == Publication(wrapped(KEY_A + HELLO), 1, "a", None)


def test_eight_byte_descriptors_are_made_short() -> None:
    message = raw(
        "00 80 00 00 00 00 00 00 00 73 c0 05 01 a1 02", b"id",
        "00 80 00 00 00 00 00 00 00 75 a0 05", b"hello",
    )  # fmt: skip
    outer = raw("00 80 00 00 00 00 00 00 00 75 a0", bytes((len(message),)), message)

    expected = raw("00 53 73 c0 05 01 a1 02", b"id", HELLO)
    assert split(outer) == Publication(wrapped(expected), 1, None, None)


def test_eight_byte_descriptor_of_the_data_section_alone_is_made_short() -> None:
    outer = raw("00 80 00 00 00 00 00 00 00 75 a0 0a", HELLO)

    assert split(outer + wrapped(WORLD)).sections == wrapped(HELLO) + wrapped(WORLD)


def test_symbolic_descriptors_are_made_short() -> None:
    message = raw(
        "00 a3 14", b"amqp:properties:list", "c0 05 01 a1 02", b"id",
        "00 b3 00 00 00 10", b"amqp:data:binary", "a0 05", b"hello",
    )  # fmt: skip

    expected = raw("00 53 73 c0 05 01 a1 02", b"id", HELLO)
    assert split(wrapped(message)).sections == wrapped(expected)


def test_republished_event_loses_what_the_service_owns_and_keeps_the_rest() -> None:
    pairs = raw(
        "a3 1b", b"x-opt-sequence-number-epoch", "54 ff",
        "a3 15", b"x-opt-sequence-number", "81 00 00 00 00 00 00 00 09",
        "a3 0c", b"x-opt-offset", "a1 02", b"42",
        "a3 13", b"x-opt-enqueued-time", "83 00 00 01 8b cf e5 68 00",
        "a3 0f", b"x-opt-publisher", "a1 01", b"p",
        "a3 03", b"own", "a0 01 ff",
    )  # fmt: skip
    message = raw("00 53 72 c1", bytes((len(pairs) + 1,)), "0c", pairs, HELLO)

    expected = raw("00 53 72 c1 09 02 a3 03", b"own", "a0 01 ff", HELLO)
    assert split(wrapped(message)).sections == wrapped(expected)


def test_annotations_that_become_empty_are_left_out() -> None:
    owned = raw("00 53 72 c1 12 02 a3 0c", b"x-opt-offset", "a1 01", b"7")

    assert split(wrapped(owned + HELLO)).sections == wrapped(HELLO)
    assert split(wrapped(owned)).sections == wrapped(raw("00 53 72 c1 01 00"))


@pytest.mark.parametrize("value", ["a1 01 70", "40", "54 01"])
def test_publisher_that_the_service_did_not_write_is_dropped(value: str) -> None:
    encoded = bytes.fromhex(value)
    size = bytes((18 + len(encoded),))
    message = raw("00 53 72 c1", size, "02 a3 0f", b"x-opt-publisher", encoded, HELLO)

    assert split(wrapped(message)).sections == wrapped(HELLO)


def test_verbatim_events_keep_their_form_beside_one_that_is_rewritten() -> None:
    long = raw("00 53 75 b0 00 00 00 0a", HELLO)
    rewritten = HELLO + raw("00 53 71 c1 01 00")

    data = long + wrapped(rewritten) + long + long
    expected = long + wrapped(raw("00 53 71 c1 01 00") + HELLO) + long + long
    assert split(data).sections == expected


def test_publisher_is_written_into_every_event() -> None:
    sections = wrapped(HELLO) + wrapped(raw("00 53 73 45") + HELLO)

    stamp = raw(
        "00 53 72 c1 2f 04 a3 13", b"x-opt-partition-key", "a1 02", b"d1",
        "a3 0f", b"x-opt-publisher", "a1 02", b"d1",
    )  # fmt: skip
    expected = wrapped(stamp + HELLO) + wrapped(stamp + raw("00 53 73 45") + HELLO)
    assert split(sections, "d1") == Publication(expected, 2, "d1", None)
    assert split(expected, "d1") == Publication(expected, 2, "d1", None)
    # Sent again, but not through the publisher: the mark is the service's own.
    assert b"publisher" not in split(expected).sections


def test_publisher_is_written_before_annotations_and_behind_a_header() -> None:
    own = raw("a3 03", b"own", "54 07")
    header = raw("00 53 70 45")
    events = [
        raw("00 53 72 c1 08 02", own, HELLO),
        raw("00 53 72 c1 08 02", own, WORLD),
        raw(header, "00 53 72 c1 08 02", own, HELLO),
        raw(header, HELLO),
    ]
    data = b"".join(map(wrapped, events))

    stamp = raw(
        "a3 13", b"x-opt-partition-key", "a1 02", b"d1", "a3 0f", b"x-opt-publisher",
        "a1 02", b"d1",
    )  # fmt: skip
    both, alone = raw("00 53 72 c1 36 06", stamp, own), raw("00 53 72 c1 2f 04", stamp)
    expected = [both + HELLO, both + WORLD, header + both + HELLO, header + alone + HELLO]
    assert split(data, "d1").sections == b"".join(map(wrapped, expected))


@pytest.mark.parametrize("data", [KEY_A + wrapped(HELLO), wrapped(HELLO) + wrapped(KEY_A + HELLO)])
def test_publisher_and_another_key_are_a_conflict(data: bytes) -> None:
    assert split(data, "a").partition_key == "a"
    with pytest.raises(KeyConflict):
        split(data, "b")


def stamped(*triples: tuple[int, int, int]) -> bytes:
    """Events with an idempotent producer's annotations: long, short, int."""
    events = []
    for producer, epoch, number in triples:
        pairs = raw(
            "a3 19", b"com.microsoft:producer-id", "81", producer.to_bytes(8, "big", signed=True),
            "a3 1c", b"com.microsoft:producer-epoch", "61", epoch.to_bytes(2, "big", signed=True),
            "a3 26", b"com.microsoft:producer-sequence-number", "71",
            number.to_bytes(4, "big", signed=True),
        )  # fmt: skip
        events.append(wrapped(raw("00 53 72 c1", bytes((len(pairs) + 1,)), "06", pairs, HELLO)))
    return b"".join(events)


def test_idempotent_producer_is_read_from_the_events() -> None:
    data = stamped((1234, 3, 42), (1234, 3, 43), (1234, 3, 44))

    assert split(data) == Publication(data, 3, None, (1234, 3, 42, 44))


def test_idempotent_producer_numbers_begin_again_at_zero() -> None:
    data = stamped((1, 0, 0x7FFFFFFE), (1, 0, 0x7FFFFFFF), (1, 0, 0), (1, 0, 1))

    assert split(data).producer == (1, 0, 0x7FFFFFFE, 1)


@pytest.mark.parametrize(
    "second", [(1, 0, 5), (1, 0, 7), (1, 1, 6), (2, 0, 6)], ids=["same", "gap", "epoch", "producer"]
)
def test_idempotent_producer_is_none_when_the_numbers_are_not_one_run(
    second: tuple[int, int, int],
) -> None:
    assert split(stamped((1, 0, 5), second)).producer is None


def test_idempotent_producer_is_none_when_a_part_is_missing_or_no_number() -> None:
    number = raw("a3 26", b"com.microsoft:producer-sequence-number", "71 00 00 00 05")
    alone = raw("00 53 72 c1", bytes((len(number) + 1,)), "02", number, HELLO)

    assert split(wrapped(alone)).producer is None
    unsigned = stamped((1, 0, 5)).replace(b"\x71\x00\x00\x00\x05", b"\x70\x00\x00\x00\x05")
    assert split(unsigned) == Publication(unsigned, 1, None, None)
    assert split(stamped((1, 0, 5)) + wrapped(HELLO)).producer is None


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "0 events"),
        (raw("00 53 70 45"), "0 events"),
        (raw("00 53 75 40"), "without binary"),
        (raw("00 53 77 40") + wrapped(HELLO), "no place"),
        (wrapped(HELLO) + raw("00 53 76 45"), "no place"),
        (raw("00 53 70 45 00 53 70 45") + wrapped(HELLO), "no second one"),
        (wrapped(HELLO) + raw("00 53 73 45 00 53 73 45"), "no second one"),
        (raw("00 53 6f 45") + wrapped(HELLO), "unknown section"),
        (raw("00 53 79 45") + wrapped(HELLO), "unknown section"),
        (raw("00 a3 03 61 62 63 45") + wrapped(HELLO), "unknown section"),
        (wrapped(HELLO) + b"\x00", "no ulong or symbol"),
        (wrapped(HELLO) + b"\x01", "no section"),
        (raw("00 53 75 a1 05", b"hello"), "without binary"),
        (raw("00 53 75 a0 ff", HELLO), "ends at byte"),
        (raw("00 53 75 b0 ff ff ff ff", HELLO), "ends at 4294967303, its place at"),
        (wrapped(raw("00 53 73 45 00 53 73 45") + HELLO), "a second section 0x73"),
        (wrapped(HELLO + raw("00 53 77 40")), "another kind, 0x77"),
        (wrapped(raw("00 53 76 45") + HELLO), "another kind"),
        (wrapped(raw("00 53 77 40 00 53 77 40")), "a second section 0x77"),
        (wrapped(raw("00 53 73 c1 01 00") + HELLO), "no list"),
        (wrapped(raw("00 53 74 c0 01 00") + HELLO), "no map"),
        (wrapped(raw("00 53 74 c1 05 02 a3 01 61 40") + HELLO), "key"),
        (wrapped(raw("00 53 72 c1 03 02 41 40") + HELLO), "key"),
        (wrapped(raw("00 53 71 c1 05 02 a1 01 61 40") + HELLO), "key at byte 11 is of type 0xa1"),
        (wrapped(raw("00 53 74 c1 04 01 a1 01 61") + HELLO), "odd number"),
        (wrapped(raw("00 53 74 c1 05 02 a1 01 ff 40") + HELLO), "UTF-8"),
        (wrapped(raw("00 53 74 c1 07 02 a1 01 61 a1 01 ff") + HELLO), "UTF-8"),
        (wrapped(raw("00 53 72 c1 05 02 a3 01 ff 40") + HELLO), "ASCII"),
        (wrapped(raw("00 53 72 c1 06 02 a1 02 c3 a9 40") + HELLO), "ASCII"),
        (wrapped(raw("00 53 73 c0 0f 0e", b"\x40" * 14) + HELLO), "14 fields"),
        (wrapped(raw("00 53 70 c0 07 06", b"\x40" * 6) + HELLO), "6 fields"),
        (wrapped(KEY_A[:-3] + raw("a1 02") + HELLO), "ends at"),
        (wrapped(raw("00 53 72 c1 06 02 a3 01 61 40 40") + HELLO), "its place at"),
        (wrapped(raw("00 53 74 c1 06 02 a1 01 61 40 40") + HELLO), "its place at"),
        (wrapped(raw("00 53 73 45 00 53 72 c1 01 00 00 53 75 a0 ff") + HELLO), "its place at"),
    ],
)
def test_malformed_batch_is_refused_with_a_reason(data: bytes, why: str) -> None:
    with pytest.raises(KernelError, match=why):
        split(data)


def test_large_event_is_looked_into_like_a_small_one() -> None:
    body = raw("00 53 75 b0 00 00 01 2c", bytes(300))
    plain, keyed = section(body), section(KEY_A + body)
    broken = section(body[:7] + b"\x2d" + body[8:])

    assert split(keyed + plain) == Publication(keyed + plain, 2, "a", None)
    assert split(plain + keyed) == Publication(plain + keyed, 2, None, None)
    for data in (broken, plain + broken, broken + plain):
        with pytest.raises(KernelError):
            split(data)
    with pytest.raises(KernelError):
        split(plain + section(raw("00 53 74 c1 02 01 40") + body))


def test_second_partition_key_is_refused() -> None:
    pair = raw("a3 13", b"x-opt-partition-key", "a1 01", b"a")

    with pytest.raises(KernelError, match="a second x-opt-partition-key"):
        split(wrapped(raw("00 53 72 c1 31 04", pair, pair, HELLO)))


def test_range_outside_the_data_is_refused() -> None:
    data = wrapped(HELLO)
    for start, end in [(-1, 5), (0, len(data) + 1), (9, 8)]:
        with pytest.raises(KernelError, match="no message at bytes"):
            split_batch(data, start, end)


@pytest.mark.parametrize("event", [HELLO, KEY_A + HELLO, HELLO + raw("00 53 71 c1 01 00")])
def test_more_events_than_allowed_are_refused(event: bytes) -> None:
    data = wrapped(event) * 11

    assert split_batch(data, 0, len(data), events_max=11).count == 11
    with pytest.raises(KernelError, match="11 events: 1 to 10"):
        split_batch(data, 0, len(data), events_max=10)


def test_batch_that_grows_beyond_a_record_is_refused() -> None:
    data = wrapped(HELLO) * 100
    written = split(data, "p" * 200).sections

    assert len(written) > 40_000
    assert split_batch(data, 0, len(data), bytes_max=len(data)).sections == data
    with pytest.raises(KernelError, match="exceeds 40000 bytes"):
        split_batch(data, 0, len(data), publisher="p" * 200, bytes_max=40_000)
    with pytest.raises(KernelError, match="exceeds 100 bytes"):
        split_batch(data, 0, len(data), bytes_max=100)


@pytest.mark.parametrize(
    "data",
    [
        wrapped(HELLO) + wrapped(WORLD),
        raw("00 53 70 45", KEY_A) + wrapped(KEY_A + HELLO) + wrapped(HELLO),
        wrapped(raw("00 53 73 c0 05 01 a1 02", b"id", "00 53 74 c1 05 02 a1 01 61 41") + HELLO),
    ],
)
def test_batch_cut_anywhere_is_refused_or_has_fewer_events(data: bytes) -> None:
    whole = split(data).count
    for cut in range(len(data)):
        for piece, end in ((data[:cut], cut), (data, cut)):
            try:
                assert split_batch(piece, 0, end).count < whole
            except KernelError:
                continue
