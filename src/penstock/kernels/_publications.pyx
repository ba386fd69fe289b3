# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""`split_batch`, `split_singles` and `count_metered_events`, compiled.

Publications of common messages that need no rewriting are handled here, without an object per
event. All others go to the pure-Python implementation, which calls the compiled checks of
`_messages`, so that an uncommon message costs the event loop little.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE

from penstock.kernels._message cimport (
    APPLICATION_PROPERTIES, HEADER, MESSAGE_ANNOTATIONS, PROPERTIES, be32, copy_bounds,
    data_section_end, fill_field_table, free, has_simple_pairs, int64_t, is_section, memcmp,
    memcpy, open_list, open_map, put_data_head, simple_end, uint8_t, uint16_t, variable_size,
)

from penstock.kernels import _messages
from penstock.kernels._pure import publications as _pure
from penstock.kernels._pure.messages import BARE as _BARE
from penstock.kernels._pure.messages import HEADER_CONSTRUCTORS, PROPERTIES_CONSTRUCTORS
from penstock.kernels._pure.messages import AnnotationsCache as _AnnotationsCache

_inspect_message = _messages.inspect_message
_read_leading_envelope = _pure.leading_envelope
_begin_run = _pure._begin_run
_extend_run = _pure._extend_run
_Publication = _pure.Publication

cdef Py_ssize_t EVENTS_MAX = _pure._EVENTS_MAX
cdef Py_ssize_t BATCH_BYTES_MAX = _pure._BATCH_BYTES_MAX
cdef Py_ssize_t SINGLES_BYTES = _pure._SINGLES_BYTES
cdef Py_ssize_t SINGLE_BYTES_MIN = _pure._SINGLE_BYTES_MIN

cdef uint16_t HEADER_FIELDS[256]
cdef uint16_t PROPERTIES_FIELDS[256]
fill_field_table(HEADER_FIELDS, HEADER_CONSTRUCTORS)
fill_field_table(PROPERTIES_FIELDS, PROPERTIES_CONSTRUCTORS)

# --- messages -------------------------------------------------------------------------------------

cdef enum:
    UNCOMMON = 0
    WITHOUT_ANNOTATIONS = 1
    CACHED_ANNOTATIONS = 2


cdef Py_ssize_t fields_end(
    const uint8_t* d, Py_ssize_t p, Py_ssize_t end, int fields_max, const uint16_t* allowed
) noexcept nogil:
    """The end of the list of a header or properties section at p, each field of its type."""
    cdef Py_ssize_t count, stop, i
    p = open_list(d, p, end, &count, &stop)
    if p < 0 or count > fields_max:
        return -1
    for i in range(count):
        if p >= stop or not allowed[d[p]] >> i & 1:
            return -1
        p = simple_end(d, p, stop)
        if p < 0:
            return -1
    return p if p == stop else -1


cdef int recognize(
    const uint8_t* d, Py_ssize_t p, Py_ssize_t end, const uint8_t* cached, Py_ssize_t cached_size
) noexcept nogil:
    """Whether the message d[p:end] is common and canonical, and which annotations it has.

        [header] [the cached annotations] [properties] [application-properties] one data section
    """
    cdef Py_ssize_t count, stop
    cdef int kind = WITHOUT_ANNOTATIONS
    if is_section(d, p, end, HEADER):
        p = fields_end(d, p + 3, end, 5, HEADER_FIELDS)
        if p < 0:
            return UNCOMMON
    if is_section(d, p, end, MESSAGE_ANNOTATIONS):
        if cached_size == 0 or end - p < cached_size or memcmp(d + p, cached, cached_size):
            return UNCOMMON
        kind = CACHED_ANNOTATIONS
        p += cached_size
    if is_section(d, p, end, PROPERTIES):
        p = fields_end(d, p + 3, end, 13, PROPERTIES_FIELDS)
        if p < 0:
            return UNCOMMON
    if is_section(d, p, end, APPLICATION_PROPERTIES):
        p = open_map(d, p + 3, end, &count, &stop)
        if p < 0 or not has_simple_pairs(d, p, stop, count, False):
            return UNCOMMON
        p = stop
    return kind if data_section_end(d, p, end, &stop) == end else UNCOMMON


cdef bint can_store(object annotations, object required_key) except -1:
    """Whether a message with these annotations is stored as it is."""
    return (
        annotations.canonical
        and (required_key is None or annotations.key == required_key)
        and annotations.publisher is None
    )


cdef class _CheckedAnnotations:
    """The last annotations section that was checked in full. In a batch, most events repeat it."""

    cdef object cache
    cdef object required_key
    cdef bytes section  # owns the bytes at `start`
    cdef const uint8_t* start
    cdef Py_ssize_t size  # 0 before the first check
    cdef bint fits  # whether a message with this section can be stored as it is

    def __cinit__(self, required_key):
        self.cache = _AnnotationsCache()
        self.required_key = required_key
        self.start = NULL
        self.size = 0
        self.fits = False

    cdef object check(self, bytes data, Py_ssize_t first, Py_ssize_t stop):
        """The annotations of an uncommon message; None if it is malformed or must be rewritten."""
        cdef object annotations
        try:
            annotations = _inspect_message(data, first, stop, self.cache)
        except Exception:
            return None  # the pure-Python implementation raises it
        if not can_store(annotations, self.required_key):
            return None
        self.section = self.cache.section
        self.start = <const uint8_t*>PyBytes_AS_STRING(self.section)
        self.size = PyBytes_GET_SIZE(self.section)
        self.fits = can_store(self.cache.annotations, self.required_key)
        return annotations


# --- runs of an idempotent producer ---------------------------------------------------------------
#
# A producer stamp as penstock.client writes it, in a map of less than 256 bytes:
#
#     00 53 72 c1 <size> <count>  a3 <id's name> 81 <u64>  a3 <epoch's name> 61 <u16>
#                                 a3 <number's name> 71 <u32>  [a3 <key's name> <key>]
#
# Its numbers are at fixed positions, so the next event of a run is recognized by comparing bytes.
cdef bytes _STAMP_ID = b"\xa3\x19com.microsoft:producer-id\x81"
cdef bytes _STAMP_EPOCH = b"\xa3\x1ccom.microsoft:producer-epoch\x61"
cdef bytes _STAMP_NUMBER = b"\xa3\x26com.microsoft:producer-sequence-number\x71"
cdef bytes _STAMP_KEY = b"\xa3\x13x-opt-partition-key"
cdef enum:
    STAMP_AT = 6
    STAMP_EPOCH_AT = 42
    STAMP_NUMBER_AT = 75
    NUMBER_AT = 116
    STAMP_END = 120
    NUMBER_MASK = 0x7FFFFFFF  # after the highest number comes 0


cdef inline Py_ssize_t stamped_section_end(
    const uint8_t* d, Py_ssize_t start, Py_ssize_t end
) noexcept nogil:
    """The end of an annotations section that is long enough for a stamp; -1 for any other."""
    cdef Py_ssize_t after
    if end - start < STAMP_END or not is_section(d, start, end, MESSAGE_ANNOTATIONS):
        return -1
    after = start + 5 + <Py_ssize_t>d[start + 4]
    return after if d[start + 3] == 0xC1 and start + STAMP_END <= after <= end else -1


cdef bytes copy_stamp(bytes data, Py_ssize_t start, Py_ssize_t end):
    """The bytes from the stamp's beginning to its number, or None for another form."""
    cdef const uint8_t* d = <const uint8_t*>PyBytes_AS_STRING(data)
    cdef Py_ssize_t after = stamped_section_end(d, start, end)
    if after < 0:
        return None
    # Only a partition key may follow: a second stamp in the map would mean another number.
    cdef bytes last = data[start + STAMP_END : after]
    if not (d[start + 5] == 6 and not last or d[start + 5] == 8 and last.startswith(_STAMP_KEY)):
        return None
    cdef bytes stamp = data[start + STAMP_AT : start + NUMBER_AT]
    if not (
        stamp.startswith(_STAMP_ID)
        and stamp.startswith(_STAMP_EPOCH, STAMP_EPOCH_AT - STAMP_AT)
        and stamp.startswith(_STAMP_NUMBER, STAMP_NUMBER_AT - STAMP_AT)
    ):
        return None
    return stamp


cdef bytes copy_around_stamp(bytes data, Py_ssize_t start):
    """Size and count of the map, and what follows the stamp in it."""
    cdef Py_ssize_t after = start + 5 + <Py_ssize_t><uint8_t>data[start + 4]
    return data[start + 4 : start + STAMP_AT] + data[start + STAMP_END : after]


cdef class _ProducerRun:
    """Consecutive numbers of one idempotent producer, as far as a batch has been read."""

    cdef object producer  # (id, epoch, first number, last number); None if there is no run
    cdef bytes stamp  # of the last event, without its number; None if its form is not the above
    cdef const uint8_t* stamp_start
    cdef int64_t following  # the number that continues the run
    cdef set surroundings  # `copy_around_stamp` of the sections that were checked in full

    def __cinit__(self):
        self.surroundings = set()

    cdef bint take_next(self, bytes data, Py_ssize_t start, Py_ssize_t end) except -1:
        """Whether the message at start is common and continues the run; it is counted then."""
        cdef const uint8_t* d = <const uint8_t*>PyBytes_AS_STRING(data)
        cdef Py_ssize_t after
        if self.stamp is None:
            return False
        after = stamped_section_end(d, start, end)
        if after < 0 or is_section(d, after, end, HEADER):
            return False
        if memcmp(d + start + STAMP_AT, self.stamp_start, NUMBER_AT - STAMP_AT):
            return False
        if <int64_t>be32(d + start + NUMBER_AT) != self.following:
            return False
        if recognize(d, after, end, NULL, 0) != WITHOUT_ANNOTATIONS:
            return False
        if copy_around_stamp(data, start) not in self.surroundings:
            return False
        self.producer = (*self.producer[:3], self.following)
        self.following = (self.following + 1) & NUMBER_MASK
        return True

    cdef int add(
        self, object stamp, bint is_first, bytes data, Py_ssize_t start, Py_ssize_t end
    ) except -1:
        """Count the message at start, whose annotations have been checked in full."""
        if is_first:
            self.producer = _begin_run(stamp)
        elif self.producer is not None:
            self.producer = _extend_run(self.producer, stamp)
        self.stamp = None if self.producer is None else copy_stamp(data, start, end)
        if self.stamp is not None:
            self.stamp_start = <const uint8_t*>PyBytes_AS_STRING(self.stamp)
            self.following = (<int64_t>self.producer[3] + 1) & NUMBER_MASK
            self.surroundings.add(copy_around_stamp(data, start))
        return 0


# --- kernels --------------------------------------------------------------------------------------


def split_batch(
    bytes data not None,
    Py_ssize_t start,
    Py_ssize_t end,
    *,
    publisher=None,
    Py_ssize_t events_max=EVENTS_MAX,
    Py_ssize_t bytes_max=BATCH_BYTES_MAX,
):
    """Split one message of format 0x80013700; see the pure-Python implementation."""
    cdef const uint8_t* d = <const uint8_t*>PyBytes_AS_STRING(data)
    cdef Py_ssize_t first = start
    cdef Py_ssize_t p, count = 0
    cdef object envelope = _BARE
    cdef object publication
    if publisher is None and 0 <= start and start <= end and end <= PyBytes_GET_SIZE(data):
        if end - start < 3 or d[start] or d[start + 1] != 0x53 or d[start + 2] != 0x75:
            try:
                envelope, first = _read_leading_envelope(data, start, end, _messages)
            except Exception:
                first = -1
        if 0 <= first <= end and end - first <= bytes_max:
            if envelope.key is None:
                p = skip_bare_events(d, first, end, &count)
                if p == end and 0 < count <= events_max:
                    return _Publication(data[first:end], count, None, None)
            publication = slice_batch(data, first, end, envelope.key, events_max)
            if publication is not None:
                return publication
    return _pure.split_batch(
        data, start, end, publisher=publisher, events_max=events_max, bytes_max=bytes_max,
        messages=_messages,
    )


cdef Py_ssize_t skip_bare_events(
    const uint8_t* d, Py_ssize_t p, Py_ssize_t end, Py_ssize_t* count
) noexcept nogil:
    """Skip and count the events that consist of one data section only."""
    cdef Py_ssize_t message, body, stop
    count[0] = 0
    while p < end:
        stop = data_section_end(d, p, end, &message)
        if stop < 0 or data_section_end(d, message, stop, &body) != stop:
            break
        p = stop
        count[0] += 1
    return p


cdef object slice_batch(
    bytes data, Py_ssize_t first, Py_ssize_t end, object key, Py_ssize_t events_max
):
    """The batch as one slice if all events are canonical and have the key; None otherwise."""
    cdef const uint8_t* d = <const uint8_t*>PyBytes_AS_STRING(data)
    cdef Py_ssize_t p = first, message, stop, count = 0
    cdef _CheckedAnnotations checked = _CheckedAnnotations(key)
    cdef _ProducerRun run = _ProducerRun()
    cdef bint bare_fits = key is None
    cdef object annotations
    cdef int kind
    while p < end:
        stop = data_section_end(d, p, end, &message)
        if stop < 0 or count >= events_max:
            return None
        if not run.take_next(data, message, stop):
            kind = recognize(d, message, stop, checked.start, checked.size)
            if kind == UNCOMMON:
                annotations = checked.check(data, message, stop)
                if annotations is None:
                    return None
                if count == 0 and key is None:
                    key = annotations.key
                run.add(annotations.producer, count == 0, data, message, stop)
            elif not (bare_fits if kind == WITHOUT_ANNOTATIONS else checked.fits):
                return None
            else:
                run.producer = run.stamp = None  # an event without a stamp ends the run
        count += 1
        p = stop
    if count == 0:
        return None
    return _Publication(data[first:end], count, key, run.producer)


def split_singles(bytes data not None, list bounds not None, *, publisher=None):
    """Combine the single messages of one socket read; see the pure-Python implementation."""
    cdef object publication = None
    if publisher is None and bounds:
        publication = combine_singles(data, bounds)
    if publication is None:
        return _pure.split_singles(data, bounds, publisher=publisher, messages=_messages)
    return [publication]


cdef object combine_singles(bytes data, list bounds):
    """One publication if all messages are canonical and have the same key; None otherwise."""
    cdef Py_ssize_t count = 0
    cdef int64_t* spans = copy_bounds(bounds, PyBytes_GET_SIZE(data), &count)
    if spans == NULL:
        return None
    try:
        return combine_spans(data, spans, count) if count <= 2 * EVENTS_MAX else None
    finally:
        free(spans)


cdef object combine_spans(bytes data, const int64_t* spans, Py_ssize_t count):
    cdef const uint8_t* d = <const uint8_t*>PyBytes_AS_STRING(data)
    cdef Py_ssize_t i, length, total = 0, counted_size = 0
    cdef _CheckedAnnotations checked = _CheckedAnnotations(None)
    cdef object key = None, event_key, cached_key = None, annotations
    cdef bytes sections
    cdef int kind
    for i in range(0, count, 2):
        length = spans[i + 1] - spans[i]
        if length < 0:
            return None
        kind = recognize(d, spans[i], spans[i + 1], checked.start, checked.size)
        event_key = None
        if kind == CACHED_ANNOTATIONS:
            if not checked.fits:
                return None
            event_key = cached_key
        elif kind == UNCOMMON:
            annotations = checked.check(data, spans[i], spans[i + 1])
            if annotations is None or annotations.producer is not None:
                return None
            event_key = annotations.key
            cached_key = checked.cache.annotations.key
        if i == 0:
            key = event_key
        elif event_key is not key and event_key != key:
            return None
        if counted_size >= SINGLES_BYTES:
            return None  # the pure-Python implementation begins another publication here
        counted_size += length + SINGLE_BYTES_MIN
        total += 3 + variable_size(length)
    sections = PyBytes_FromStringAndSize(NULL, total)
    put_sections(<uint8_t*>PyBytes_AS_STRING(sections), d, spans, count)
    return _Publication(sections, count >> 1, key, None)


cdef void put_sections(
    uint8_t* out, const uint8_t* d, const int64_t* spans, Py_ssize_t count
) noexcept nogil:
    """Write each message as a data section."""
    cdef Py_ssize_t i, length
    for i in range(0, count, 2):
        length = spans[i + 1] - spans[i]
        out = put_data_head(out, length)
        memcpy(out, d + spans[i], length)
        out += length


def count_metered_events(bytes sections not None, Py_ssize_t step):
    """Count stored events by their size; see the pure-Python implementation."""
    cdef const uint8_t* d = <const uint8_t*>PyBytes_AS_STRING(sections)
    cdef Py_ssize_t end = PyBytes_GET_SIZE(sections)
    cdef Py_ssize_t p = 0, steps = 0, message, size
    if step <= 0:
        return _pure.count_metered_events(sections, step)
    while p < end:
        p = data_section_end(d, p, end, &message)
        if p < 0:
            return _pure.count_metered_events(sections, step)
        size = p - message
        steps += 1 if size <= step else (size + step - 1) // step
    return steps
