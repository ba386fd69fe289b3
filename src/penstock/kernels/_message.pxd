# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""A usual delivered event, found and checked in C; shared by the compiled kernels that open events.

    [delivery-annotations] message-annotations [properties] [application-properties] one data section

The annotations begin as Penstock and Event Hubs write them; keys are symbols or strings; values are
simple ones. `usual_event` is false for all else, which the pure twin looks at. What it accepts the
pure twin accepts too, and after it every length inside the event may be believed.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp, memcpy

cdef extern from "Python.h":
    int _PyBytes_Resize(PyObject** held, Py_ssize_t size) except -1

cdef enum:
    PLACE_BYTES = 55  # epoch pair, and the sequence number's key and constructor
    OFFSET_BYTES = 15
    TIME_BYTES = 22
    PAIRS_MAX = 255  # of one map; more is unusual


cdef struct Event:
    int64_t sequence_number
    int64_t enqueued_ms
    Py_ssize_t offset, offset_size
    Py_ssize_t key, key_size  # -1 where there is none
    Py_ssize_t publisher, publisher_size
    Py_ssize_t annotations, annotation_count  # pairs behind those of the place
    Py_ssize_t fields, field_count, fields_set
    Py_ssize_t properties, property_count  # pairs
    Py_ssize_t body, body_size


cdef inline uint32_t be32(const uint8_t* p) noexcept nogil:
    return (<uint32_t>p[0] << 24) | (<uint32_t>p[1] << 16) | (<uint32_t>p[2] << 8) | p[3]


cdef inline uint64_t be64(const uint8_t* p) noexcept nogil:
    return (<uint64_t>be32(p) << 32) | be32(p + 4)


cdef inline Py_ssize_t width_of(uint8_t code) noexcept nogil:
    """Bytes of a fixed-width value with its constructor; 0 for all others."""
    if code < 0x40:
        return 0
    if code <= 0x45:
        return 1
    if code < 0x50:
        return 0
    if code <= 0x55:
        return 2
    if code == 0x60 or code == 0x61:
        return 3
    if code == 0x70 or code == 0x71 or code == 0x72 or code == 0x74:
        return 5
    if 0x80 <= code <= 0x84:
        return 9
    return 17 if code == 0x94 or code == 0x98 else 0


cdef inline bint is_ascii_text(const uint8_t* p, Py_ssize_t length) noexcept nogil:
    cdef uint64_t word, high = (<uint64_t>0x80808080 << 32) | <uint64_t>0x80808080
    cdef Py_ssize_t i = 0
    while i + 8 <= length:
        memcpy(&word, p + i, 8)
        if word & high:
            return False
        i += 8
    while i < length:
        if p[i] & 0x80:
            return False
        i += 1
    return True


cdef inline bint is_utf8(const uint8_t* p, Py_ssize_t length) noexcept nogil:
    """As Python judges: no surrogates, no longer form than needed, nothing above U+10FFFF."""
    cdef Py_ssize_t i = 0, more
    cdef uint8_t low, high
    if is_ascii_text(p, length):
        return True
    while i < length:
        if p[i] < 0x80:
            i += 1
            continue
        low = 0x80
        high = 0xBF
        if 0xC2 <= p[i] <= 0xDF:
            more = 1
        elif 0xE0 <= p[i] <= 0xEF:
            more = 2
            if p[i] == 0xE0:
                low = 0xA0
            elif p[i] == 0xED:
                high = 0x9F
        elif 0xF0 <= p[i] <= 0xF4:
            more = 3
            if p[i] == 0xF0:
                low = 0x90
            elif p[i] == 0xF4:
                high = 0x8F
        else:
            return False
        if length - i <= more or p[i + 1] < low or p[i + 1] > high:
            return False
        i += 2
        while more > 1:
            if p[i] & 0xC0 != 0x80:
                return False
            i += 1
            more -= 1
    return True


cdef inline Py_ssize_t text_start(const uint8_t* d, Py_ssize_t p) noexcept nogil:
    """Where the content of the variable-width value at p begins."""
    return p + (5 if d[p] & 0x10 else 2)


cdef inline Py_ssize_t variable_end(
    const uint8_t* d, Py_ssize_t p, Py_ssize_t stop
) noexcept nogil:
    """Behind the variable-width value at p; -1 if it is cut off."""
    cdef Py_ssize_t length
    if d[p] & 0x10:
        if stop - p < 5:
            return -1
        length = be32(d + p + 1)
        p += 5
    else:
        if stop - p < 2:
            return -1
        length = d[p + 1]
        p += 2
    return p + length if length <= stop - p else -1


cdef inline Py_ssize_t value_end(const uint8_t* d, Py_ssize_t p, Py_ssize_t stop) noexcept nogil:
    """Behind the simple value at p, whose texts are checked; -1 for anything else."""
    cdef Py_ssize_t after
    cdef uint8_t code
    if p >= stop:
        return -1
    code = d[p]
    after = width_of(code)
    if after:
        return p + after if after <= stop - p else -1
    if code == 0x56:
        return p + 2 if stop - p >= 2 and d[p + 1] <= 1 else -1
    if code != 0xA0 and code != 0xA1 and code != 0xA3:
        if code != 0xB0 and code != 0xB1 and code != 0xB3:
            return -1
    after = variable_end(d, p, stop)
    if after < 0:
        return -1
    p = text_start(d, p)
    if code & 0x0F == 1 and not is_utf8(d + p, after - p):
        return -1
    if code & 0x0F == 3 and not is_ascii_text(d + p, after - p):
        return -1
    return after


cdef inline bint is_text(uint8_t code) noexcept nogil:
    return code == 0xA1 or code == 0xA3 or code == 0xB1 or code == 0xB3


cdef inline Py_ssize_t open_pairs(
    const uint8_t* d, Py_ssize_t p, Py_ssize_t end, Py_ssize_t* count, Py_ssize_t* stop
) noexcept nogil:
    """The first key of the map at p, how many pairs it has and where it ends; -1 for none."""
    if end - p >= 3 and d[p] == 0xC1:
        stop[0] = p + 2 + d[p + 1]
        count[0] = d[p + 2]
        p += 3
    elif end - p >= 9 and d[p] == 0xD1:
        if be32(d + p + 1) > <uint32_t>0x7FFFFFFF or be32(d + p + 5) > 2 * PAIRS_MAX:
            return -1
        stop[0] = p + 5 + <Py_ssize_t>be32(d + p + 1)
        count[0] = be32(d + p + 5)
        p += 9
    else:
        return -1
    if stop[0] > end or stop[0] < p or count[0] & 1:
        return -1
    count[0] >>= 1
    return p


cdef inline bint usual_pairs(
    const uint8_t* d, Py_ssize_t p, Py_ssize_t stop, Py_ssize_t count
) noexcept nogil:
    """Simple values under keys that are texts, up to `stop` and no further."""
    while count:
        if p >= stop or not is_text(d[p]):
            return False
        p = value_end(d, p, stop)
        if p < 0:
            return False
        p = value_end(d, p, stop)
        if p < 0:
            return False
        count -= 1
    return p == stop


cdef inline bint usual_annotations(
    const uint8_t* d, Py_ssize_t p, Py_ssize_t stop, Event* found
) noexcept nogil:
    """The pairs behind the place: as others, and the key and the publisher are strings."""
    cdef Py_ssize_t i, name, size
    if not usual_pairs(d, p, stop, found.annotation_count):
        return False
    for i in range(found.annotation_count):
        name = text_start(d, p)
        p = variable_end(d, p, stop)
        size = p - name
        if size >= 12 and not memcmp(d + name, <const char*>b"x-opt-", 6):
            if size == 19 and not memcmp(d + name, <const char*>b"x-opt-partition-key", 19):
                if found.key >= 0 or (d[p] != 0xA1 and d[p] != 0xB1):
                    return False
                found.key = text_start(d, p)
                found.key_size = variable_end(d, p, stop) - found.key
            elif size == 15 and not memcmp(d + name, <const char*>b"x-opt-publisher", 15):
                if found.publisher >= 0 or (d[p] != 0xA1 and d[p] != 0xB1):
                    return False
                found.publisher = text_start(d, p)
                found.publisher_size = variable_end(d, p, stop) - found.publisher
            elif is_place(d + name, size):
                return False  # a second one
        p = value_end(d, p, stop)
    return True


cdef inline bint is_place(const uint8_t* name, Py_ssize_t size) noexcept nogil:
    if size == 12:
        return not memcmp(name, <const char*>b"x-opt-offset", 12)
    if size == 19:
        return not memcmp(name, <const char*>b"x-opt-enqueued-time", 19)
    if size == 21:
        return not memcmp(name, <const char*>b"x-opt-sequence-number", 21)
    return size == 27 and not memcmp(name, <const char*>b"x-opt-sequence-number-epoch", 27)


cdef inline Py_ssize_t usual_place(
    const uint8_t* d, Py_ssize_t p, Py_ssize_t end, Event* found
) noexcept nogil:
    """Behind the message-annotations whose map is at p; -1 if they are unusual."""
    cdef Py_ssize_t count, stop
    p = open_pairs(d, p, end, &count, &stop)
    if p < 0 or count < 4 or stop - p < PLACE_BYTES + 8 + OFFSET_BYTES + 1 + TIME_BYTES + 8:
        return -1
    if memcmp(
        d + p,
        <const char*>b"\xa3\x1bx-opt-sequence-number-epoch\x54\xff\xa3\x15x-opt-sequence-number\x81",
        PLACE_BYTES,
    ):
        return -1
    p += PLACE_BYTES
    found.sequence_number = <int64_t>be64(d + p)
    p += 8
    if memcmp(d + p, <const char*>b"\xa3\x0cx-opt-offset\xa1", OFFSET_BYTES):
        return -1
    p += OFFSET_BYTES + 1
    found.offset = p
    found.offset_size = d[p - 1]
    p += found.offset_size
    if stop - p < TIME_BYTES + 8 or not is_ascii_text(d + found.offset, found.offset_size):
        return -1
    if memcmp(d + p, <const char*>b"\xa3\x13x-opt-enqueued-time\x83", TIME_BYTES):
        return -1
    p += TIME_BYTES
    found.enqueued_ms = <int64_t>be64(d + p)
    found.annotations = p + 8
    found.annotation_count = count - 4
    found.key = found.publisher = -1
    found.key_size = found.publisher_size = 0
    return stop if usual_annotations(d, p + 8, stop, found) else -1


cdef inline Py_ssize_t usual_fields(
    const uint8_t* d, Py_ssize_t p, Py_ssize_t end, Event* found
) noexcept nogil:
    """Behind the list of AMQP's own properties at p; -1 if it is unusual."""
    cdef Py_ssize_t stop, i
    if p < end and d[p] == 0x45:
        return p + 1
    if end - p < 3 or d[p] != 0xC0:
        return -1
    stop = p + 2 + d[p + 1]
    found.field_count = d[p + 2]
    if stop > end or stop < p + 3 or found.field_count > 13:
        return -1
    p += 3
    found.fields = p
    for i in range(found.field_count):
        if p < stop and d[p] != 0x40:
            found.fields_set += 1
        p = value_end(d, p, stop)
        if p < 0:
            return -1
    return stop if p == stop else -1


cdef inline bint begins(
    const uint8_t* d, Py_ssize_t p, Py_ssize_t end, uint8_t code
) noexcept nogil:
    return end - p >= 4 and d[p] == 0 and d[p + 1] == 0x53 and d[p + 2] == code


cdef inline bint usual_event(
    const uint8_t* d, Py_ssize_t p, Py_ssize_t end, Event* found
) noexcept nogil:
    """Whether the message d[p:end] is a usual one, and where its parts are."""
    cdef Py_ssize_t stop
    found.fields = found.properties = -1
    found.field_count = found.fields_set = found.property_count = 0
    if begins(d, p, end, 0x71):
        # Nobody opens these here, so their length is all that counts; that of a map8 or map32.
        if d[p + 3] != 0xC1 and d[p + 3] != 0xD1:
            return False
        p = variable_end(d, p + 3, end)
        if p < 0:
            return False
    if not begins(d, p, end, 0x72):
        return False
    p = usual_place(d, p + 3, end, found)
    if p < 0:
        return False
    if begins(d, p, end, 0x73):
        p = usual_fields(d, p + 3, end, found)
        if p < 0:
            return False
    if begins(d, p, end, 0x74):
        p = open_pairs(d, p + 3, end, &found.property_count, &stop)
        if p < 0 or not usual_pairs(d, p, stop, found.property_count):
            return False
        found.properties = p
        p = stop
    if not begins(d, p, end, 0x75):
        return False
    p += 3
    if (d[p] != 0xA0 and d[p] != 0xB0) or variable_end(d, p, end) != end:
        return False
    found.body = text_start(d, p)
    found.body_size = end - found.body
    return True


# --- the bounds of messages -----------------------------------------------------------------------


cdef inline int64_t* spans_of(object bounds, Py_ssize_t size, Py_ssize_t* count) except? NULL:
    """The bounds as C numbers, to be freed; NULL when one lies outside of `size` bytes, or when
    there is an odd number of them. A copy: whoever is called meanwhile may change the list."""
    cdef list numbers = bounds if type(bounds) is list else list(bounds)
    cdef Py_ssize_t i, length = len(numbers)
    cdef int64_t* places
    count[0] = length
    if length & 1:
        return NULL
    places = <int64_t*>malloc(8 * length + 8)
    if places == NULL:
        raise MemoryError("the bounds of events")
    try:
        for i in range(length):
            places[i] = numbers[i]
            if places[i] < 0 or places[i] > size:
                free(places)
                return NULL
    except BaseException:
        free(places)
        raise
    return places


# --- buffers that grow ----------------------------------------------------------------------------


cdef struct Buffer:
    PyObject* held  # bytes of `room`, given away when they are taken: nothing is copied then
    uint8_t* data
    Py_ssize_t used
    Py_ssize_t room
    Py_ssize_t usual  # how much it held when it was last taken


cdef inline int reserve(Buffer* buffer, Py_ssize_t more) except -1:
    """Room for so many bytes more. Raises MemoryError, and the buffer stays as it was."""
    if buffer.room - buffer.used >= more:
        return 0
    return grow(buffer, more)


cdef inline int grow(Buffer* buffer, Py_ssize_t more) except -1:
    cdef Py_ssize_t room = buffer.used + more
    cdef object fresh
    room += room // 2 + 4096
    if room < buffer.usual + buffer.usual // 8:
        room = buffer.usual + buffer.usual // 8
    fresh = PyBytes_FromStringAndSize(NULL, room)
    if buffer.used:
        memcpy(PyBytes_AS_STRING(fresh), buffer.data, buffer.used)
    release(buffer, buffer.used)
    Py_INCREF(fresh)
    buffer.held = <PyObject*>fresh
    buffer.data = <uint8_t*>PyBytes_AS_STRING(fresh)
    buffer.room = room
    return 0


cdef inline void append(Buffer* buffer, const void* data, Py_ssize_t size) noexcept nogil:
    """What there is room for."""
    if size:
        memcpy(buffer.data + buffer.used, data, size)
        buffer.used += size


cdef inline void release(Buffer* buffer, Py_ssize_t used) noexcept:
    """Let go of the memory; `used` stays as told."""
    if buffer.held != NULL:
        Py_DECREF(<object>buffer.held)
    buffer.held = NULL
    buffer.data = NULL
    buffer.used = used
    buffer.room = 0


cdef inline bytes taken_bytes(Buffer* buffer):
    """What it holds; then it holds nothing."""
    cdef PyObject* held = buffer.held
    cdef Py_ssize_t used = buffer.used
    cdef bytes taken
    if held == NULL:
        return b""
    buffer.held = NULL
    buffer.usual = used
    release(buffer, 0)
    _PyBytes_Resize(&held, used)
    taken = <bytes>held
    Py_DECREF(taken)  # the reference that the buffer had
    return taken
