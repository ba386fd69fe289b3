# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The kernels, compiled: the same signatures, results and errors as `_pure`.

Usual shapes are handled here, in C and without an object per event. Everything else is handed to the
pure implementation, which at ingest uses the compiled checks of `_messages`: unusual messages cost
the event loop little, and the two implementations cannot disagree on what is refused or why.
Every length must be checked before it is used; the differential and sanitizer tests verify it.
"""

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE, PyByteArray_Resize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_Next, PyDict_Size
from cpython.float cimport PyFloat_AS_DOUBLE
from cpython.long cimport PyLong_AsLongLongAndOverflow
from cpython.object cimport PyObject
from cpython.unicode cimport PyUnicode_DecodeASCII
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport malloc
from libc.string cimport memcmp, memcpy

from penstock.kernels import _messages
from penstock.kernels._pure import producer_batch as _appending
from penstock.kernels._pure import columns as _columns
from penstock.kernels._pure import transfer_frames as _framing
from penstock.kernels._pure import publications as _splitting
from penstock.kernels._pure import steps as _steps
from penstock.kernels._pure.messages import BARE as _BARE
from penstock.kernels._pure.messages import HEADER_CONSTRUCTORS, PROPERTIES_CONSTRUCTORS
from penstock.kernels._pure.messages import AnnotationsCache as _Seen

_pure_frame_events = _framing.frame_events
_pure_frame_run = _framing.frame_run
_pure_split_batch = _splitting.split_batch
_pure_split_singles = _splitting.split_singles
_pure_count_steps = _steps.count_metered_events
_inspect = _messages.inspect_message
_leading_envelope = _splitting.leading_envelope
_begun = _splitting._begin_run
_extended = _splitting._extend_run
_Publication = _splitting.Publication
_Framed = _framing.FramedDeliveries
_Columns = _columns.Columns

cdef Py_ssize_t EVENTS_MAX = 65536
cdef Py_ssize_t BATCH_BYTES_MAX = 4 * 1024 * 1024
cdef Py_ssize_t SINGLES_BYTES = 1024 * 1024


cdef inline uint32_t be32(const uint8_t* p) noexcept nogil:
    return (<uint32_t>p[0] << 24) | (<uint32_t>p[1] << 16) | (<uint32_t>p[2] << 8) | p[3]


cdef inline void put32(uint8_t* p, uint32_t value) noexcept nogil:
    p[0] = value >> 24
    p[1] = (value >> 16) & 0xFF
    p[2] = (value >> 8) & 0xFF
    p[3] = value & 0xFF


cdef inline void put64(uint8_t* p, uint64_t value) noexcept nogil:
    put32(p, <uint32_t>(value >> 32))
    put32(p + 4, <uint32_t>value)


cdef inline int64_t be64(const uint8_t* p) noexcept nogil:
    return <int64_t>((<uint64_t>be32(p) << 32) | be32(p + 4))


cdef uint64_t HIGH_BITS = (<uint64_t>0x80808080 << 32) | <uint64_t>0x80808080


cdef inline bint is_ascii(const uint8_t* p, Py_ssize_t length) noexcept nogil:
    cdef uint64_t word
    cdef Py_ssize_t i = 0
    while i + 8 <= length:
        memcpy(&word, p + i, 8)
        if word & HIGH_BITS:
            return False
        i += 8
    while i < length:
        if p[i] & 0x80:
            return False
        i += 1
    return True


cdef uint8_t WIDTH[256]


cdef void fill_widths() noexcept:
    cdef int i
    for i in range(256):
        WIDTH[i] = 0
    for i in (0x40, 0x41, 0x42, 0x43, 0x44, 0x45):
        WIDTH[i] = 1
    for i in (0x50, 0x51, 0x52, 0x53, 0x54, 0x55):
        WIDTH[i] = 2
    for i in (0x60, 0x61):
        WIDTH[i] = 3
    for i in (0x70, 0x71, 0x72, 0x74):
        WIDTH[i] = 5
    for i in (0x80, 0x81, 0x82, 0x83, 0x84):
        WIDTH[i] = 9
    for i in (0x94, 0x98):
        WIDTH[i] = 17


fill_widths()

# Bit i: the constructor may stand in field i of that list.
cdef uint16_t HEADER_FIELDS[256]
cdef uint16_t PROPERTIES_FIELDS[256]


cdef int fill_fields(uint16_t* table, tuple fields) except -1:
    cdef int i, code
    for code in range(256):
        table[code] = 0
    for i, codes in enumerate(fields):
        for code in codes:
            table[code] |= <uint16_t>(1 << i)
    return 0


fill_fields(HEADER_FIELDS, HEADER_CONSTRUCTORS)
fill_fields(PROPERTIES_FIELDS, PROPERTIES_CONSTRUCTORS)

# --- ingest -------------------------------------------------------------------------------------

cdef enum:
    UNUSUAL = 0
    PLAIN = 1  # no annotations
    SEEN = 2  # annotations equal to the last ones that were looked at


cdef inline Py_ssize_t after_simple(
    const uint8_t* d, Py_ssize_t p, Py_ssize_t stop, bint symbols
) noexcept nogil:
    """Where a fixed-width value or a short ASCII text ends; -1 for anything else."""
    cdef uint8_t code
    cdef Py_ssize_t after
    if p >= stop:
        return -1
    code = d[p]
    if WIDTH[code]:
        after = p + WIDTH[code]
    elif code == 0xA1 or (symbols and code == 0xA3):
        if p + 2 > stop:
            return -1
        after = p + 2 + d[p + 1]
        if after > stop or not is_ascii(d + p + 2, d[p + 1]):
            return -1
    elif code == 0x56:
        if p + 2 > stop or d[p + 1] > 1:
            return -1
        after = p + 2
    else:
        return -1
    return after if after <= stop else -1


cdef Py_ssize_t after_fields(
    const uint8_t* d, Py_ssize_t p, Py_ssize_t end, int count_max, const uint16_t* allowed
) noexcept nogil:
    """Behind a section that is a list0 or list8 of simple fields; p is at its constructor."""
    cdef Py_ssize_t stop
    cdef int count, i
    if d[p] == 0x45:
        return p + 1
    if d[p] != 0xC0 or p + 3 > end:
        return -1
    stop = p + 2 + d[p + 1]
    count = d[p + 2]
    if stop > end or stop < p + 3 or count > count_max:
        return -1
    p += 3
    for i in range(count):
        if p >= stop or not allowed[d[p]] >> i & 1:
            return -1
        p = after_simple(d, p, stop, True)
        if p < 0:
            return -1
    return p if p == stop else -1


cdef Py_ssize_t after_properties(const uint8_t* d, Py_ssize_t p, Py_ssize_t end) noexcept nogil:
    """Behind a map8 of short strings and simple values; p is at its constructor."""
    cdef Py_ssize_t stop
    cdef int count
    if d[p] != 0xC1 or p + 3 > end:
        return -1
    stop = p + 2 + d[p + 1]
    count = d[p + 2]
    if stop > end or stop < p + 3 or count & 1:
        return -1
    p += 3
    while count:
        if p + 2 > stop or d[p] != 0xA1:
            return -1
        if p + 2 + d[p + 1] > stop or not is_ascii(d + p + 2, d[p + 1]):
            return -1
        p += 2 + d[p + 1]
        p = after_simple(d, p, stop, False)
        if p < 0:
            return -1
        count -= 2
    return p if p == stop else -1


cdef int usual(
    const uint8_t* d, Py_ssize_t p, Py_ssize_t end, const uint8_t* seen, Py_ssize_t seen_size
) noexcept nogil:
    """[header] [annotations as seen] [properties] [application-properties] one data section."""
    cdef int found = PLAIN
    if end - p < 5 or d[p] or d[p + 1] != 0x53:
        return UNUSUAL
    if d[p + 2] == 0x70:
        p = after_fields(d, p + 3, end, 5, HEADER_FIELDS)
        if p < 0 or end - p < 5 or d[p] or d[p + 1] != 0x53:
            return UNUSUAL
    if d[p + 2] == 0x72:
        if seen_size == 0 or end - p < seen_size or memcmp(d + p, seen, seen_size):
            return UNUSUAL
        found = SEEN
        p += seen_size
        if end - p < 5 or d[p] or d[p + 1] != 0x53:
            return UNUSUAL
    if d[p + 2] == 0x73:
        p = after_fields(d, p + 3, end, 13, PROPERTIES_FIELDS)
        if p < 0 or end - p < 5 or d[p] or d[p + 1] != 0x53:
            return UNUSUAL
    if d[p + 2] == 0x74:
        p = after_properties(d, p + 3, end)
        if p < 0 or end - p < 5 or d[p] or d[p + 1] != 0x53:
            return UNUSUAL
    if d[p + 2] != 0x75:
        return UNUSUAL
    if d[p + 3] == 0xA0:
        p += 5 + d[p + 4]
    elif d[p + 3] == 0xB0 and end - p >= 8:
        p += 8 + <Py_ssize_t>be32(d + p + 4)
    else:
        return UNUSUAL
    return found if p == end else UNUSUAL


cdef Py_ssize_t plain_events(
    const uint8_t* d, Py_ssize_t p, Py_ssize_t end, Py_ssize_t* count
) noexcept nogil:
    """How far, and how many, events follow that are nothing but one data section each."""
    cdef Py_ssize_t length
    count[0] = 0
    while end - p >= 10 and d[p] == 0 and d[p + 1] == 0x53 and d[p + 2] == 0x75:
        if d[p + 3] == 0xA0:
            length = d[p + 4]
            if length < 5 or memcmp(d + p + 5, d + p, 4) or d[p + 9] + 5 != length:
                break
            if end - p < 5 + length:
                break
            p += 5 + length
        elif d[p + 3] == 0xB0 and end - p >= 16:
            length = be32(d + p + 4)
            if length < 8 or memcmp(d + p + 8, d + p, 4):
                break
            if <Py_ssize_t>be32(d + p + 12) + 8 != length or end - p < 8 + length:
                break
            p += 8 + length
        else:
            break
        count[0] += 1
    return p


def split_batch(
    bytes data not None,
    Py_ssize_t start,
    Py_ssize_t end,
    *,
    publisher=None,
    Py_ssize_t events_max=EVENTS_MAX,
    Py_ssize_t bytes_max=BATCH_BYTES_MAX,
):
    """Split one message of format 0x80013700; see the pure twin."""
    cdef const uint8_t* d = <const uint8_t*>PyBytes_AS_STRING(data)
    cdef Py_ssize_t first = start
    cdef Py_ssize_t p, count = 0
    cdef object envelope = _BARE
    cdef object done
    if publisher is None and 0 <= start and start <= end and end <= PyBytes_GET_SIZE(data):
        if end - start < 3 or d[start] or d[start + 1] != 0x53 or d[start + 2] != 0x75:
            try:
                envelope, first = _leading_envelope(data, start, end, _messages)
            except Exception:
                first = -1
        if 0 <= first <= end and end - first <= bytes_max:
            if envelope.key is None:
                p = plain_events(d, first, end, &count)
                if p == end and 0 < count <= events_max:
                    return _Publication(data[first:end], count, None, None)
            done = _usual_batch(data, first, end, envelope.key, events_max)
            if done is not None:
                return done
    return _pure_split_batch(
        data, start, end, publisher=publisher, events_max=events_max, bytes_max=bytes_max,
        messages=_messages,
    )


# A stamp as penstock.client writes it, in sections whose map has less than 256 bytes:
#
#     00 53 72 c1 <size> <count>  a3 <id's name> 81 <u64>  a3 <epoch's name> 61 <u16>
#                                 a3 <number's name> 71 <u32>  [a3 <key's name> <key>]
#
# Its numbers stand at fixed places, so the next event of a run is known by comparing bytes.
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


cdef bytes _stamp_of(bytes data, Py_ssize_t start, Py_ssize_t end):
    """The bytes from the stamp's beginning to its number, or None for another shape."""
    cdef const uint8_t* d = <const uint8_t*>PyBytes_AS_STRING(data)
    if end - start < STAMP_END or d[start] or d[start + 1] != 0x53 or d[start + 2] != 0x72:
        return None
    if d[start + 3] != 0xC1 or 5 + <Py_ssize_t>d[start + 4] < STAMP_END:
        return None
    # Nothing else may stand there: a name twice would mean another number.
    cdef bytes rest = data[start + STAMP_END : start + 5 + d[start + 4]]
    if not (d[start + 5] == 6 and not rest or d[start + 5] == 8 and rest.startswith(_STAMP_KEY)):
        return None
    cdef bytes stamp = data[start + STAMP_AT : start + NUMBER_AT]
    if not (
        stamp.startswith(_STAMP_ID)
        and stamp.startswith(_STAMP_EPOCH, STAMP_EPOCH_AT - STAMP_AT)
        and stamp.startswith(_STAMP_NUMBER, STAMP_NUMBER_AT - STAMP_AT)
    ):
        return None
    return stamp


cdef bytes _around_stamp(bytes data, Py_ssize_t start):
    """Size and count of the map, and what follows the stamp in it."""
    cdef Py_ssize_t size = 5 + <Py_ssize_t><uint8_t>data[start + 4]
    return data[start + 4 : start + STAMP_AT] + data[start + STAMP_END : start + size]


cdef bint _is_stamped_next(
    bytes data,
    const uint8_t* d,
    Py_ssize_t start,
    Py_ssize_t end,
    const uint8_t* stamp,
    int64_t following,
    set around,
) except -1:
    """Whether an event is the next of the run and else as usual, in a section seen before."""
    cdef Py_ssize_t after
    if end - start < STAMP_END or d[start] or d[start + 1] != 0x53 or d[start + 2] != 0x72:
        return False
    if d[start + 3] != 0xC1:
        return False
    after = start + 5 + <Py_ssize_t>d[start + 4]
    if after < start + STAMP_END or end - after < 5 or d[after + 2] == 0x70:
        return False
    if memcmp(d + start + STAMP_AT, stamp, NUMBER_AT - STAMP_AT):
        return False
    if <int64_t>be32(d + start + NUMBER_AT) != following:
        return False
    if usual(d, after, end, NULL, 0) != PLAIN:
        return False
    return _around_stamp(data, start) in around


cdef object _usual_batch(
    bytes data, Py_ssize_t first, Py_ssize_t end, object wanted, Py_ssize_t events_max
):
    """All events canonical and with the wanted key: the batch is one slice. None otherwise."""
    cdef const uint8_t* d = <const uint8_t*>PyBytes_AS_STRING(data)
    cdef Py_ssize_t p = first, inner, stop, count = 0
    cdef object seen = _Seen()
    cdef bytes section = b""
    cdef const uint8_t* seen_bytes = NULL
    cdef Py_ssize_t seen_size = 0
    cdef bint seen_fits = False, plain_fits = wanted is None
    cdef object key = wanted, producer = None, annotations
    cdef int kind
    # Of an idempotent producer: a stamped section as our own client writes it, the number that
    # follows it, and what may stand around the stamp (a key, or nothing).
    cdef bytes stamp = None
    cdef const uint8_t* stamp_bytes = NULL
    cdef int64_t following = -1
    cdef set around = set()
    while p < end:
        if end - p < 5 or d[p] or d[p + 1] != 0x53 or d[p + 2] != 0x75 or count >= events_max:
            return None
        if d[p + 3] == 0xA0:
            inner = p + 5
            stop = inner + d[p + 4]
        elif d[p + 3] == 0xB0 and end - p >= 8:
            inner = p + 8
            stop = inner + <Py_ssize_t>be32(d + p + 4)
        else:
            return None
        if stop > end:
            return None
        if stamp is not None and _is_stamped_next(
            data, d, inner, stop, stamp_bytes, following, around
        ):
            producer = (*producer[:3], following)
            following = (following + 1) & 0x7FFFFFFF
            count += 1
            p = stop
            continue
        kind = usual(d, inner, stop, seen_bytes, seen_size)
        if kind == UNUSUAL:
            try:
                annotations = _inspect(data, inner, stop, seen)
            except Exception:
                return None
            if not _fits(annotations, wanted):
                return None
            if count == 0:
                producer = _begun(annotations.producer)
                key = annotations.key if key is None else key
            elif producer is not None:
                producer = _extended(producer, annotations.producer)
            stamp = None if producer is None else _stamp_of(data, inner, stop)
            if stamp is not None:
                stamp_bytes = <const uint8_t*>PyBytes_AS_STRING(stamp)
                following = (<int64_t>producer[3] + 1) & 0x7FFFFFFF
                around.add(_around_stamp(data, inner))
            section = seen.section
            seen_bytes = <const uint8_t*>PyBytes_AS_STRING(section)
            seen_size = PyBytes_GET_SIZE(section)
            seen_fits = _fits(seen.annotations, wanted)
        elif not (plain_fits if kind == PLAIN else seen_fits):
            return None
        elif producer is not None:
            producer = stamp = None  # an event without a stamp ends the run
        count += 1
        p = stop
    if count == 0:
        return None
    return _Publication(data[first:end], count, key, producer)


cdef bint _fits(object annotations, object wanted) except -1:
    return (
        annotations.canonical
        and (wanted is None or annotations.key == wanted)
        and annotations.publisher is None
    )


def split_singles(bytes data not None, list bounds not None, *, publisher=None):
    """Coalesce ordinary messages of one socket read; see the pure twin."""
    cdef object done = None
    if publisher is None and bounds:
        done = _usual_singles(data, bounds)
    if done is None:
        return _pure_split_singles(data, bounds, publisher=publisher, messages=_messages)
    return [done]


cdef object _usual_singles(bytes data, list bounds):
    """All messages canonical and of one key: one publication. None otherwise."""
    cdef const uint8_t* d = <const uint8_t*>PyBytes_AS_STRING(data)
    cdef Py_ssize_t size = PyBytes_GET_SIZE(data), numbers = len(bounds)
    cdef Py_ssize_t i, start, end, length, total = 0, messages = 0, last = 0
    cdef object seen = _Seen()
    cdef bytes section = b"", sections
    cdef const uint8_t* seen_bytes = NULL
    cdef Py_ssize_t seen_size = 0
    cdef object key = None, own, seen_key = None, annotations
    cdef bint seen_fits = False
    cdef int kind
    cdef uint8_t* out
    if numbers & 1 or numbers > 2 * EVENTS_MAX:
        return None
    for i in range(0, numbers, 2):
        start = bounds[i]
        end = bounds[i + 1]
        if start < 0 or end < start or end > size:
            return None
        kind = usual(d, start, end, seen_bytes, seen_size)
        own = None
        if kind == SEEN:
            if not seen_fits:
                return None
            own = seen_key
        elif kind == UNUSUAL:
            try:
                annotations = _inspect(data, start, end, seen)
            except Exception:
                return None
            if not _fits(annotations, None) or annotations.producer is not None:
                return None
            own = annotations.key
            section = seen.section
            seen_bytes = <const uint8_t*>PyBytes_AS_STRING(section)
            seen_size = PyBytes_GET_SIZE(section)
            seen_key = seen.annotations.key
            seen_fits = _fits(seen.annotations, None)
        if i == 0:
            key = own
        elif own is not key and own != key:
            return None
        if messages >= SINGLES_BYTES:
            return None  # the pure twin begins another publication here
        length = end - start
        messages += length
        total += length + (5 if length <= 0xFF else 8)
    sections = PyBytes_FromStringAndSize(NULL, total)
    out = <uint8_t*>PyBytes_AS_STRING(sections)
    for i in range(0, numbers, 2):
        start = bounds[i]
        length = <Py_ssize_t>bounds[i + 1] - start
        # The bounds are the caller's list: it is read twice, so it is believed only once.
        if length < 0 or start < 0 or start + length > size:
            return None
        last = length + (5 if length <= 0xFF else 8)
        if last > total:
            return None
        total -= last
        out[0] = 0
        out[1] = 0x53
        out[2] = 0x75
        if length <= 0xFF:
            out[3] = 0xA0
            out[4] = <uint8_t>length
            out += 5
        else:
            out[3] = 0xB0
            put32(out + 4, <uint32_t>length)
            out += 8
        memcpy(out, d + start, length)
        out += length
    return _Publication(sections, numbers >> 1, key, None) if total == 0 else None


# --- deliver ------------------------------------------------------------------------------------

cdef bytes _EPOCH_AND_SEQUENCE = (
    b"\xa3\x1bx-opt-sequence-number-epoch\x54\xff" b"\xa3\x15x-opt-sequence-number\x81"
)
cdef bytes _OFFSET = b"\xa3\x0cx-opt-offset\xa1"
cdef bytes _ENQUEUED = b"\xa3\x13x-opt-enqueued-time\x83"
cdef bytes _AFTER_ID = b"\xa0\x00\x43\x41\x42\x40\x40\x40\x40\x41"
cdef Py_ssize_t OWNED_BYTES = (
    len(_EPOCH_AND_SEQUENCE) + 8 + len(_OFFSET) + 1 + len(_ENQUEUED) + 8
)
cdef Py_ssize_t OWN_BYTES_MAX = 0xFF - (OWNED_BYTES + 1) - 20

cdef enum:
    SCRATCH_BYTES = 1 << 20
    HEAD_BYTES_MAX = 32

cdef uint8_t* scratch = <uint8_t*>malloc(SCRATCH_BYTES)
if scratch == NULL:
    raise MemoryError("the kernels' scratch buffer")


cdef Py_ssize_t put_decimal(uint8_t* out, uint64_t value) noexcept nogil:
    cdef uint8_t digits[20]
    cdef Py_ssize_t i = 20, length
    while True:
        i -= 1
        digits[i] = 0x30 + <uint8_t>(value % 10)
        value //= 10
        if value == 0:
            break
    length = 20 - i
    memcpy(out, &digits[i], length)
    return length


cdef Py_ssize_t put_head(uint8_t* head, uint32_t channel, uint32_t handle) noexcept nogil:
    """From the frame's doff to the delivery-id's constructor."""
    cdef Py_ssize_t size
    head[0] = 2
    head[1] = 0
    head[2] = (channel >> 8) & 0xFF
    head[3] = channel & 0xFF
    head[4] = 0
    head[5] = 0x53
    head[6] = 0x14
    head[7] = 0xC0
    head[9] = 11
    if handle == 0:
        head[10] = 0x43
        size = 11
    elif handle <= 0xFF:
        head[10] = 0x52
        head[11] = <uint8_t>handle
        size = 12
    else:
        head[10] = 0x70
        put32(head + 11, handle)
        size = 15
    head[8] = <uint8_t>(1 + (size - 10) + 5 + 10)
    head[size] = 0x70
    return size + 1


cdef Py_ssize_t stored_part(
    const uint8_t* d,
    Py_ssize_t p,
    Py_ssize_t end,
    Py_ssize_t* message_end,
    Py_ssize_t* own,
    uint8_t* own_count,
) noexcept nogil:
    """Where what is copied of the event at p starts; -1 if the pure twin must look at it."""
    cdef Py_ssize_t m, stop
    own[0] = 0
    own_count[0] = 0
    if end - p < 9 or d[p] or d[p + 1] != 0x53 or d[p + 2] != 0x75:
        return -1
    if d[p + 3] == 0xA0:
        m = p + 5
        stop = m + d[p + 4]
    elif d[p + 3] == 0xB0:
        m = p + 8
        stop = m + <Py_ssize_t>be32(d + p + 4)
    else:
        return -1
    if stop > end or stop - m < 4 or d[m] or d[m + 1] != 0x53:
        return -1
    message_end[0] = stop
    if d[m + 2] == 0x70:
        if d[m + 3] == 0x45:
            m += 4
        elif d[m + 3] == 0xC0 and stop - m >= 5:
            m += 5 + d[m + 4]
        else:
            return -1
        if m == stop:
            return m
        if stop - m < 4 or d[m] or d[m + 1] != 0x53:
            return -1
    if d[m + 2] > 0x72:
        return m
    if d[m + 2] != 0x72 or d[m + 3] != 0xC1 or stop - m < 6 or d[m + 4] == 0:
        return -1
    own[0] = d[m + 4] - 1
    own_count[0] = d[m + 5]
    if m + 6 + own[0] > stop or own[0] >= OWN_BYTES_MAX or own_count[0] > 0xFF - 8:
        return -1
    return m + 6


cdef struct Run:
    Py_ssize_t used  # of the scratch buffer
    Py_ssize_t size
    Py_ssize_t events
    Py_ssize_t frames
    Py_ssize_t position
    uint32_t delivery_id
    int64_t sequence


cdef int frame_some(
    Run* run,
    list parts,
    bytes sections,
    Py_ssize_t events_max,
    Py_ssize_t frames_max,
    Py_ssize_t bytes_max,
    uint32_t channel,
    uint32_t handle,
    Py_ssize_t frame_bytes_max,
    int64_t base_offset,
    int64_t enqueued_ms,
    bytes runtime,
) except -1:
    """Frame events of one batch behind what the run has; its position is in bounds."""
    cdef const uint8_t* d = <const uint8_t*>PyBytes_AS_STRING(sections)
    cdef const uint8_t* metrics = <const uint8_t*>PyBytes_AS_STRING(runtime)
    cdef Py_ssize_t end = PyBytes_GET_SIZE(sections), metrics_size = PyBytes_GET_SIZE(runtime)
    cdef uint8_t head[HEAD_BYTES_MAX]
    cdef Py_ssize_t head_size = put_head(head, channel, handle)
    cdef Py_ssize_t position = run.position, frame_size, m, stop, own, digits
    cdef Py_ssize_t fixed = 4 + head_size + 4 + 10 + metrics_size + 6 + OWNED_BYTES
    cdef uint8_t own_count
    cdef uint8_t text[20]
    cdef uint8_t* out
    cdef object framed
    while position < end and run.events < events_max and (run.size < bytes_max or not run.events):
        m = stored_part(d, position, end, &stop, &own, &own_count)
        if m >= 0:
            digits = put_decimal(text, <uint64_t>(base_offset + position))
            frame_size = fixed + digits + (stop - m)
        if m < 0 or frame_size > frame_bytes_max or frame_size > SCRATCH_BYTES:
            if run.used:
                parts.append(PyBytes_FromStringAndSize(<char*>scratch, run.used))
                run.used = 0
            framed = _pure_frame_events(
                sections, position, events_max=1, frames_max=frames_max - run.frames, bytes_max=1,
                channel=channel, handle=handle, delivery_id=run.delivery_id,
                frame_bytes_max=frame_bytes_max, sequence=run.sequence, base_offset=base_offset,
                enqueued_ms=enqueued_ms, runtime=runtime,
            )
            if framed.events == 0:
                break
            parts.append(framed.data)
            run.size += PyBytes_GET_SIZE(framed.data)
            run.frames += framed.frames
            position = framed.position
        else:
            if run.frames >= frames_max:
                break
            if run.used + frame_size > SCRATCH_BYTES:
                parts.append(PyBytes_FromStringAndSize(<char*>scratch, run.used))
                run.used = 0
            out = scratch + run.used
            put32(out, <uint32_t>frame_size)
            memcpy(out + 4, head, head_size)
            out += 4 + head_size
            put32(out, run.delivery_id)
            memcpy(out + 4, PyBytes_AS_STRING(_AFTER_ID), 10)
            out += 14
            memcpy(out, metrics, metrics_size)
            out += metrics_size
            out[0] = 0
            out[1] = 0x53
            out[2] = 0x72
            out[3] = 0xC1
            out[4] = <uint8_t>(own + digits + OWNED_BYTES + 1)
            out[5] = <uint8_t>(own_count + 8)
            out += 6
            memcpy(out, PyBytes_AS_STRING(_EPOCH_AND_SEQUENCE), PyBytes_GET_SIZE(_EPOCH_AND_SEQUENCE))
            out += PyBytes_GET_SIZE(_EPOCH_AND_SEQUENCE)
            put64(out, <uint64_t>run.sequence)
            out += 8
            memcpy(out, PyBytes_AS_STRING(_OFFSET), PyBytes_GET_SIZE(_OFFSET))
            out += PyBytes_GET_SIZE(_OFFSET)
            out[0] = <uint8_t>digits
            memcpy(out + 1, text, digits)
            out += 1 + digits
            memcpy(out, PyBytes_AS_STRING(_ENQUEUED), PyBytes_GET_SIZE(_ENQUEUED))
            out += PyBytes_GET_SIZE(_ENQUEUED)
            put64(out, <uint64_t>enqueued_ms)
            memcpy(out + 8, d + m, stop - m)
            run.used += frame_size
            run.size += frame_size
            run.frames += 1
            position = stop
        run.events += 1
        run.sequence += 1
        run.delivery_id += 1  # wraps at 2**32, as it must
    run.position = position
    return 0


cdef object framed_run(Run* run, list parts):
    if not parts:
        data = PyBytes_FromStringAndSize(<char*>scratch, run.used)
    else:
        if run.used:
            parts.append(PyBytes_FromStringAndSize(<char*>scratch, run.used))
        data = b"".join(parts)
    return _Framed(data, run.events, run.frames, run.position)


cdef inline bint is_in_bounds(Py_ssize_t position, Py_ssize_t end, int64_t base_offset) noexcept:
    return 0 <= position <= end and 0 <= base_offset <= <int64_t>1 << 62


def frame_events(
    bytes sections not None,
    Py_ssize_t position,
    *,
    Py_ssize_t events_max,
    Py_ssize_t frames_max,
    Py_ssize_t bytes_max,
    uint32_t channel,
    uint32_t handle,
    uint32_t delivery_id,
    Py_ssize_t frame_bytes_max,
    int64_t sequence,
    int64_t base_offset,
    int64_t enqueued_ms,
    bytes runtime not None,
):
    """Frame events as settled transfers, one delivery each; see the pure twin."""
    cdef list parts = []
    cdef Run run
    if not is_in_bounds(position, PyBytes_GET_SIZE(sections), base_offset):
        return _pure_frame_events(  # which judges it, and words why
            sections, position, events_max=events_max, frames_max=frames_max,
            bytes_max=bytes_max, channel=channel, handle=handle, delivery_id=delivery_id,
            frame_bytes_max=frame_bytes_max, sequence=sequence, base_offset=base_offset,
            enqueued_ms=enqueued_ms, runtime=runtime,
        )
    run.used = run.size = run.events = run.frames = 0
    run.position, run.delivery_id, run.sequence = position, delivery_id, sequence
    frame_some(
        &run, parts, sections, events_max, frames_max, bytes_max, channel, handle,
        frame_bytes_max, base_offset, enqueued_ms, runtime,
    )
    return framed_run(&run, parts)


def frame_run(
    list batches not None,
    Py_ssize_t position,
    *,
    Py_ssize_t events_max,
    Py_ssize_t frames_max,
    Py_ssize_t bytes_max,
    uint32_t channel,
    uint32_t handle,
    uint32_t delivery_id,
    Py_ssize_t frame_bytes_max,
    int64_t sequence,
    bytes runtime not None,
):
    """The same over several stored batches; see the pure twin."""
    cdef list parts = []
    cdef Run run
    cdef bytes sections
    cdef int64_t base_offset, left
    cdef Py_ssize_t before
    run.used = run.size = run.events = run.frames = 0
    run.position, run.delivery_id, run.sequence = position, delivery_id, sequence
    for batch in batches:
        if run.events:
            if run.events >= events_max or run.frames >= frames_max or run.size >= bytes_max:
                break
            run.position, run.sequence = 0, batch.first_sequence
        sections, base_offset = batch.sections, batch.base_offset
        if not is_in_bounds(run.position, PyBytes_GET_SIZE(sections), base_offset):
            return _pure_frame_run(
                batches, position, events_max=events_max, frames_max=frames_max,
                bytes_max=bytes_max, channel=channel, handle=handle, delivery_id=delivery_id,
                frame_bytes_max=frame_bytes_max, sequence=sequence, runtime=runtime,
            )
        left = batch.first_sequence + batch.count - run.sequence
        before = run.events
        frame_some(
            &run, parts, sections, min(events_max, before + left), frames_max, bytes_max,
            channel, handle, frame_bytes_max, base_offset, batch.enqueued_ms, runtime,
        )
        if run.events - before < left:
            break
    return framed_run(&run, parts)


# --- read ---------------------------------------------------------------------------------------

cdef bytes _KEY_KEY = b"\xa3\x13x-opt-partition-key\xa1"


cdef Py_ssize_t section_end(const uint8_t* d, Py_ssize_t p, Py_ssize_t end) noexcept nogil:
    """Behind the list, map or binary at p, by its own length; -1 for anything else."""
    cdef Py_ssize_t stop
    if p >= end:
        return -1
    if d[p] == 0x45:
        return p + 1
    if d[p] == 0xC0 or d[p] == 0xC1 or d[p] == 0xA0:
        if p + 2 > end:
            return -1
        stop = p + 2 + d[p + 1]
    elif d[p] == 0xD0 or d[p] == 0xD1 or d[p] == 0xB0:
        if p + 5 > end:
            return -1
        stop = p + 5 + <Py_ssize_t>be32(d + p + 1)
    else:
        return -1
    return stop if stop <= end else -1


cdef class _Rows:
    """The columns as they grow."""

    cdef list sequence_numbers, offsets, enqueued, keys, bodies, properties, system, messages
    cdef bytearray kinds

    def __cinit__(self, object columns):
        self.sequence_numbers = columns.sequence_numbers
        self.offsets = columns.offsets
        self.enqueued = columns.enqueued_ms
        self.keys = columns.partition_keys
        self.bodies = columns.bodies
        self.properties = columns.properties
        self.system = columns.system
        self.messages = columns.message_properties
        self.kinds = bytearray()


cdef bint usual_row(bytes data, Py_ssize_t p, Py_ssize_t end, _Rows rows) except -1:
    """Append an event whose sections stand as Penstock and Event Hubs write them."""
    cdef const uint8_t* d = <const uint8_t*>PyBytes_AS_STRING(data)
    cdef Py_ssize_t a, stop, offset, digits, enqueued, key = -1, key_size = 0
    cdef Py_ssize_t fields = -1, fields_end = 0, properties = -1, properties_end = 0
    cdef Py_ssize_t named = PyBytes_GET_SIZE(_EPOCH_AND_SEQUENCE)
    if end - p < 9 + OWNED_BYTES or d[p] or d[p + 1] != 0x53:
        return False
    if d[p + 2] == 0x71:
        if d[p + 3] != 0xC1 and d[p + 3] != 0xD1:
            return False
        p = section_end(d, p + 3, end)
        if p < 0 or end - p < 9 + OWNED_BYTES or d[p] or d[p + 1] != 0x53:
            return False
    if d[p + 2] != 0x72 or d[p + 3] != 0xC1:
        return False
    a = p + 3
    stop = a + 2 + d[a + 1]
    if stop > end or stop - a < 3 + OWNED_BYTES:
        return False
    if memcmp(d + a + 3, PyBytes_AS_STRING(_EPOCH_AND_SEQUENCE), named):
        return False
    offset = a + 3 + named + 8 + PyBytes_GET_SIZE(_OFFSET) + 1
    digits = d[offset - 1]
    enqueued = offset + digits
    if memcmp(d + a + 3 + named + 8, PyBytes_AS_STRING(_OFFSET), PyBytes_GET_SIZE(_OFFSET)):
        return False
    p = enqueued + PyBytes_GET_SIZE(_ENQUEUED) + 8
    if p > stop or not is_ascii(d + offset, digits):
        return False
    if memcmp(d + enqueued, PyBytes_AS_STRING(_ENQUEUED), PyBytes_GET_SIZE(_ENQUEUED)):
        return False
    if p != stop:
        key = p + PyBytes_GET_SIZE(_KEY_KEY) + 1
        if d[a + 2] != 10 or key > stop:
            return False
        if memcmp(d + p, PyBytes_AS_STRING(_KEY_KEY), PyBytes_GET_SIZE(_KEY_KEY)):
            return False
        key_size = d[key - 1]
        if key + key_size != stop or not is_ascii(d + key, key_size):
            return False
    elif d[a + 2] != 8:
        return False
    p = stop
    if end - p >= 4 and d[p] == 0 and d[p + 1] == 0x53 and d[p + 2] == 0x73:
        if d[p + 3] != 0x45 and d[p + 3] != 0xC0 and d[p + 3] != 0xD0:
            return False
        fields, fields_end = p + 3, section_end(d, p + 3, end)
        if fields_end < 0:
            return False
        p = fields_end
    if end - p >= 4 and d[p] == 0 and d[p + 1] == 0x53 and d[p + 2] == 0x74:
        if d[p + 3] != 0xC1 and d[p + 3] != 0xD1:
            return False
        properties, properties_end = p + 3, section_end(d, p + 3, end)
        if properties_end < 0:
            return False
        p = properties_end
    if end - p < 5 or d[p] or d[p + 1] != 0x53 or d[p + 2] != 0x75:
        return False
    if (d[p + 3] != 0xA0 and d[p + 3] != 0xB0) or section_end(d, p + 3, end) != end:
        return False
    rows.sequence_numbers.append(be64(d + a + 3 + named))
    rows.offsets.append(PyUnicode_DecodeASCII(<char*>d + offset, digits, NULL))
    rows.enqueued.append(be64(d + enqueued + PyBytes_GET_SIZE(_ENQUEUED)))
    rows.keys.append(None if key < 0 else PyUnicode_DecodeASCII(<char*>d + key, key_size, NULL))
    p += 5 if d[p + 3] == 0xA0 else 8
    rows.bodies.append(PyBytes_FromStringAndSize(<char*>d + p, end - p))
    rows.properties.append(
        b"" if properties < 0
        else PyBytes_FromStringAndSize(<char*>d + properties, properties_end - properties)
    )
    rows.system.append(PyBytes_FromStringAndSize(<char*>d + a, stop - a))
    rows.messages.append(
        b"" if fields < 0 else PyBytes_FromStringAndSize(<char*>d + fields, fields_end - fields)
    )
    rows.kinds.append(0x75)
    return True


def decode_events(bytes data not None, list bounds not None):
    """Decode delivered messages into columns; see the pure twin."""
    cdef object columns = _Columns([], [], [], [], [], [], [], [], b"")
    cdef _Rows rows = _Rows(columns)
    cdef Py_ssize_t i, start, end, size = PyBytes_GET_SIZE(data), numbers = len(bounds)
    cdef object one
    for i in range(numbers):
        start = bounds[i]
        if start < 0 or start > size or numbers & 1:
            return _columns.decode_events(data, bounds)  # which says what is wrong
    for i in range(0, numbers, 2):
        start = bounds[i]
        end = bounds[i + 1]
        if not usual_row(data, start, end, rows):
            one = _columns.decode_events(data, [start, end])
            rows.sequence_numbers += one.sequence_numbers
            rows.offsets += one.offsets
            rows.enqueued += one.enqueued_ms
            rows.keys += one.partition_keys
            rows.bodies += one.bodies
            rows.properties += one.properties
            rows.system += one.system
            rows.messages += one.message_properties
            rows.kinds += one.body_kinds
    return _Columns(
        rows.sequence_numbers, rows.offsets, rows.enqueued, rows.keys, rows.bodies,
        rows.properties, rows.system, rows.messages, bytes(rows.kinds),
    )


# --- counting for the ledger ----------------------------------------------------------------------


def count_metered_events(bytes sections not None, Py_ssize_t step):
    """Steps of a size that stored events take; see the pure twin."""
    cdef const uint8_t* d = <const uint8_t*>PyBytes_AS_STRING(sections)
    cdef Py_ssize_t end = PyBytes_GET_SIZE(sections)
    cdef Py_ssize_t p = 0, steps = 0, size
    if step <= 0:
        return _pure_count_steps(sections, step)
    while p < end:
        if end - p >= 5 and d[p + 3] == 0xA0:
            size = d[p + 4]
            p += 5
        elif end - p >= 8 and d[p + 3] == 0xB0:
            size = be32(d + p + 4)
            p += 8
        else:
            return _pure_count_steps(sections, step)
        if size > end - p:
            return _pure_count_steps(sections, step)
        p += size
        steps += 1 if size <= step else (size + step - 1) // step
    return steps


# --- publish: the producer's half -----------------------------------------------------------------

cdef Py_ssize_t EVENT_BYTES_MAX = _appending.EVENT_BYTES_MAX

cdef extern from "Python.h":
    const char* PyUnicode_AsUTF8AndSize(object text, Py_ssize_t* size) except NULL


cdef inline Py_ssize_t variable_size(Py_ssize_t length) noexcept nogil:
    return length + (2 if length < 256 else 5)


cdef inline uint8_t* put_variable(
    uint8_t* out, uint8_t code, const char* chunk, Py_ssize_t length
) noexcept nogil:
    if length < 256:
        out[0] = code
        out[1] = <uint8_t>length
        out += 2
    else:
        out[0] = code | 0x10
        put32(out + 1, <uint32_t>length)
        out += 5
    memcpy(out, chunk, length)
    return out + length


cdef Py_ssize_t value_size(object value) except -2:
    """Bytes that the value takes; -1 for one that is unusual."""
    cdef Py_ssize_t length
    cdef int overflow = 0
    cdef long long number
    cdef object kind = type(value)
    if kind is str:
        try:
            PyUnicode_AsUTF8AndSize(value, &length)
        except UnicodeEncodeError:
            return -1
        return variable_size(length)
    if kind is int:
        number = PyLong_AsLongLongAndOverflow(value, &overflow)
        if overflow:
            return -1
        return 2 if -128 <= number <= 127 else 9
    if value is None or kind is bool:
        return 1
    if kind is float:
        return 9
    if kind is bytes:
        return variable_size(PyBytes_GET_SIZE(value))
    return -1


cdef uint8_t* put_value(uint8_t* out, object value) except NULL:
    """What `value_size` has measured."""
    cdef Py_ssize_t length
    cdef const char* text
    cdef int overflow = 0
    cdef long long number
    cdef double real
    cdef uint64_t bits
    cdef object kind = type(value)
    if kind is str:
        text = PyUnicode_AsUTF8AndSize(value, &length)
        return put_variable(out, 0xA1, text, length)
    if kind is int:
        number = PyLong_AsLongLongAndOverflow(value, &overflow)
        if -128 <= number <= 127:
            out[0] = 0x55
            out[1] = <uint8_t>(number & 0xFF)
            return out + 2
        out[0] = 0x81
        put64(out + 1, <uint64_t>number)
        return out + 9
    if kind is float:
        real = PyFloat_AS_DOUBLE(value)
        memcpy(&bits, &real, 8)
        out[0] = 0x82
        put64(out + 1, bits)
        return out + 9
    if kind is bytes:
        return put_variable(out, 0xA0, PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value))
    out[0] = 0x40 if value is None else (0x41 if value is True else 0x42)
    return out + 1


cdef Py_ssize_t pairs_size(dict properties) except -2:
    """Bytes of all keys and values; -1 when one is unusual, or all are too large."""
    cdef PyObject* key
    cdef PyObject* value
    cdef Py_ssize_t place = 0, total = 0, size
    while PyDict_Next(properties, &place, &key, &value):
        if type(<object>key) is not str:
            return -1
        size = value_size(<object>key)
        if size < 0:
            return -1
        total += size
        size = value_size(<object>value)
        if size < 0:
            return -1
        total += size
        if total > EVENT_BYTES_MAX:
            return -1
    return total


cdef uint8_t* put_pairs(uint8_t* out, dict properties) except NULL:
    cdef PyObject* key
    cdef PyObject* value
    cdef Py_ssize_t place = 0
    while PyDict_Next(properties, &place, &key, &value):
        out = put_value(out, <object>key)
        out = put_value(out, <object>value)
    return out


def append_event(
    bytearray out not None,
    bytes annotations not None,
    bytes fields not None,
    dict properties,
    bytes body not None,
):
    """Append one event to a batch as a data section; see the pure twin."""
    cdef Py_ssize_t pairs = -1, count = 0, head, message, before = PyByteArray_GET_SIZE(out)
    cdef uint8_t* p
    head = PyBytes_GET_SIZE(annotations) + PyBytes_GET_SIZE(fields)
    if head + PyBytes_GET_SIZE(body) > EVENT_BYTES_MAX:
        return False
    message = head + 3 + variable_size(PyBytes_GET_SIZE(body))
    if properties is not None and PyDict_Size(properties) > 0:
        count = 2 * PyDict_Size(properties)
        pairs = pairs_size(properties)
        if pairs < 0:
            return False
        message += 3 + pairs + (3 if pairs < 255 and count < 256 else 9)
    if message > EVENT_BYTES_MAX:
        return False
    PyByteArray_Resize(out, before + 3 + variable_size(message))
    p = <uint8_t*>PyByteArray_AS_STRING(out) + before
    p[0] = 0
    p[1] = 0x53
    p[2] = 0x75
    if message < 256:
        p[3] = 0xA0
        p[4] = <uint8_t>message
        p += 5
    else:
        p[3] = 0xB0
        put32(p + 4, <uint32_t>message)
        p += 8
    memcpy(p, PyBytes_AS_STRING(annotations), PyBytes_GET_SIZE(annotations))
    p += PyBytes_GET_SIZE(annotations)
    memcpy(p, PyBytes_AS_STRING(fields), PyBytes_GET_SIZE(fields))
    p += PyBytes_GET_SIZE(fields)
    if pairs >= 0:
        p[0] = 0
        p[1] = 0x53
        p[2] = 0x74
        if pairs < 255 and count < 256:
            p[3] = 0xC1
            p[4] = <uint8_t>(pairs + 1)
            p[5] = <uint8_t>count
            p += 6
        else:
            p[3] = 0xD1
            put32(p + 4, <uint32_t>(pairs + 4))
            put32(p + 8, <uint32_t>count)
            p += 12
        p = put_pairs(p, properties)
    p[0] = 0
    p[1] = 0x53
    p[2] = 0x75
    put_variable(p + 3, 0xA0, PyBytes_AS_STRING(body), PyBytes_GET_SIZE(body))
    return True


def append_bodies(
    bytearray out not None,
    bytes annotations not None,
    Py_ssize_t number_at,
    int64_t number,
    const uint8_t[::1] data not None,
    const uint8_t[::1] ends not None,
    Py_ssize_t first,
    Py_ssize_t stop,
    *,
    Py_ssize_t size_max,
):
    """Append rows of a column of bodies as events; see the pure twin."""
    cdef Py_ssize_t own = PyBytes_GET_SIZE(annotations), size = data.shape[0]
    cdef Py_ssize_t before = PyByteArray_GET_SIZE(out), total = before, row, body, message, section
    cdef int32_t begin, end
    cdef const uint8_t* offsets
    cdef const uint8_t* bodies
    cdef uint8_t* p
    cdef uint8_t* start
    cdef list starts = []
    if (
        first < 0 or first > stop or stop >= ends.shape[0] // 4 or ends.shape[0] % 4
        or (number_at >= 0 and number_at > own - 4) or number < 0
    ):
        return _appending.append_bodies(  # which judges it, and words why
            out, annotations, number_at, number, data, ends, first, stop, size_max=size_max
        )
    offsets = &ends[0]
    bodies = &data[0] if size else offsets  # empty ones are copied from somewhere
    for row in range(first, stop):
        memcpy(&begin, offsets + 4 * row, 4)
        memcpy(&end, offsets + 4 * row + 4, 4)
        if begin < 0 or end < begin or end > size:
            return _appending.append_bodies(
                out, annotations, number_at, number, data, ends, first, stop, size_max=size_max
            )
        message = own + 3 + variable_size(end - begin)
        section = 3 + variable_size(message)
        if total + section > size_max:
            break
        starts.append(total + section - message)
        total += section
    if not starts:
        return starts
    PyByteArray_Resize(out, total)
    p = <uint8_t*>PyByteArray_AS_STRING(out) + before
    row = first
    for _ in range(len(starts)):
        memcpy(&begin, offsets + 4 * row, 4)
        memcpy(&end, offsets + 4 * row + 4, 4)
        body = end - begin
        message = own + 3 + variable_size(body)
        p[0] = 0
        p[1] = 0x53
        p[2] = 0x75
        if message < 256:
            p[3] = 0xA0
            p[4] = <uint8_t>message
            p += 5
        else:
            p[3] = 0xB0
            put32(p + 4, <uint32_t>message)
            p += 8
        start = p
        memcpy(p, PyBytes_AS_STRING(annotations), own)
        if number_at >= 0:
            put32(start + number_at, <uint32_t>((number + row - first) & 0x7FFFFFFF))
        p += own
        p[0] = 0
        p[1] = 0x53
        p[2] = 0x75
        p = put_variable(p + 3, 0xA0, <const char*>bodies + begin, body)
        row += 1
    return starts
