# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Inline C functions that the compiled kernels share.

`d` is the first byte of the data; `p`, `end` and `stop` are positions in it. No function reads at
or after its `end` or `stop`. A function that returns a position returns -1 where the bytes do not
have the form that it knows; the caller then calls the pure-Python implementation.
"""

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp, memcpy

cdef extern from *:
    """
    /* Bytes of a fixed-width value with its constructor (AMQP 1.0 section 1.6), else 0. */
    static const unsigned char FIXED_WIDTH[256] = {
        [0x40] = 1, [0x41] = 1, [0x42] = 1, [0x43] = 1, [0x44] = 1, [0x45] = 1,
        [0x50] = 2, [0x51] = 2, [0x52] = 2, [0x53] = 2, [0x54] = 2, [0x55] = 2,
        [0x60] = 3, [0x61] = 3, [0x70] = 5, [0x71] = 5, [0x72] = 5, [0x74] = 5,
        [0x80] = 9, [0x81] = 9, [0x82] = 9, [0x83] = 9, [0x84] = 9, [0x94] = 17, [0x98] = 17,
    };
    """
    const uint8_t FIXED_WIDTH[256]

cdef enum:
    # Section codes (AMQP 1.0 section 3.2).
    HEADER = 0x70
    DELIVERY_ANNOTATIONS = 0x71
    MESSAGE_ANNOTATIONS = 0x72
    PROPERTIES = 0x73
    APPLICATION_PROPERTIES = 0x74
    DATA = 0x75
    SEQUENCE = 0x76
    VALUE = 0x77
    FOOTER = 0x78
    # Bytes of the annotations' names in `epoch_and_sequence`, `offset_name` and `enqueued_name`.
    EPOCH_AND_SEQUENCE_BYTES = 55
    OFFSET_BYTES = 15
    ENQUEUED_BYTES = 22
    PAIRS_MAX = 255  # of one map in a common event
    DECIMAL_BYTES_MAX = 20


# --- numbers --------------------------------------------------------------------------------------


cdef inline uint32_t be32(const uint8_t* p) noexcept nogil:
    return (<uint32_t>p[0] << 24) | (<uint32_t>p[1] << 16) | (<uint32_t>p[2] << 8) | p[3]


cdef inline uint64_t be64(const uint8_t* p) noexcept nogil:
    return (<uint64_t>be32(p) << 32) | be32(p + 4)


cdef inline void put32(uint8_t* p, uint32_t value) noexcept nogil:
    p[0] = value >> 24
    p[1] = (value >> 16) & 0xFF
    p[2] = (value >> 8) & 0xFF
    p[3] = value & 0xFF


cdef inline void put64(uint8_t* p, uint64_t value) noexcept nogil:
    put32(p, <uint32_t>(value >> 32))
    put32(p + 4, <uint32_t>value)


cdef inline Py_ssize_t put_decimal(uint8_t* out, uint64_t value) noexcept nogil:
    """Write the decimal digits, at most DECIMAL_BYTES_MAX; return their number."""
    cdef uint8_t digits[DECIMAL_BYTES_MAX]
    cdef Py_ssize_t i = DECIMAL_BYTES_MAX
    while True:
        i -= 1
        digits[i] = 0x30 + <uint8_t>(value % 10)
        value //= 10
        if value == 0:
            break
    memcpy(out, &digits[i], DECIMAL_BYTES_MAX - i)
    return DECIMAL_BYTES_MAX - i


# --- values ---------------------------------------------------------------------------------------


cdef inline bint is_string(uint8_t code) noexcept nogil:
    return code == 0xA1 or code == 0xB1


cdef inline bint is_symbol(uint8_t code) noexcept nogil:
    return code == 0xA3 or code == 0xB3


cdef inline bint is_text(uint8_t code) noexcept nogil:
    return is_string(code) or is_symbol(code)


cdef inline bint is_ascii(const uint8_t* p, Py_ssize_t length) noexcept nogil:
    cdef uint64_t word, high_bits = (<uint64_t>0x80808080 << 32) | <uint64_t>0x80808080
    cdef Py_ssize_t i = 0
    while i + 8 <= length:
        memcpy(&word, p + i, 8)
        if word & high_bits:
            return False
        i += 8
    while i < length:
        if p[i] & 0x80:
            return False
        i += 1
    return True


cdef inline bint is_utf8(const uint8_t* p, Py_ssize_t length) noexcept nogil:
    """What Python's decoder accepts: no surrogates, no overlong form, nothing above U+10FFFF."""
    cdef Py_ssize_t i = 0, more
    cdef uint8_t low, high
    if is_ascii(p, length):
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


cdef inline Py_ssize_t content_start(const uint8_t* d, Py_ssize_t p) noexcept nogil:
    """Where the content of the variable-width value at p begins."""
    return p + (5 if d[p] & 0x10 else 2)


cdef inline Py_ssize_t variable_end(
    const uint8_t* d, Py_ssize_t p, Py_ssize_t stop
) noexcept nogil:
    """The end of the variable-width value, list or map at p, by its length; p is before stop."""
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


cdef inline Py_ssize_t simple_end(const uint8_t* d, Py_ssize_t p, Py_ssize_t stop) noexcept nogil:
    """The end of a valid value of fixed width, binary, string, symbol or boolean at p."""
    cdef Py_ssize_t after
    cdef uint8_t code
    if p >= stop:
        return -1
    code = d[p]
    after = FIXED_WIDTH[code]
    if after:
        return p + after if after <= stop - p else -1
    if code == 0x56:
        return p + 2 if stop - p >= 2 and d[p + 1] <= 1 else -1
    if not is_text(code) and code != 0xA0 and code != 0xB0:
        return -1
    after = variable_end(d, p, stop)
    if after < 0:
        return -1
    p = content_start(d, p)
    if is_string(code) and not is_utf8(d + p, after - p):
        return -1
    if is_symbol(code) and not is_ascii(d + p, after - p):
        return -1
    return after


cdef inline Py_ssize_t variable_size(Py_ssize_t length) noexcept nogil:
    """Bytes that `put_variable` writes."""
    return length + (2 if length < 256 else 5)


cdef inline uint8_t* put_variable_head(
    uint8_t* out, uint8_t code, Py_ssize_t length
) noexcept nogil:
    """Write constructor and length; `code` is the constructor for short values."""
    if length < 256:
        out[0] = code
        out[1] = <uint8_t>length
        return out + 2
    out[0] = code | 0x10
    put32(out + 1, <uint32_t>length)
    return out + 5


cdef inline uint8_t* put_variable(
    uint8_t* out, uint8_t code, const void* content, Py_ssize_t length
) noexcept nogil:
    """Write a binary, string or symbol; return its end."""
    out = put_variable_head(out, code, length)
    memcpy(out, content, length)
    return out + length


# --- sections -------------------------------------------------------------------------------------


cdef inline bint is_section(
    const uint8_t* d, Py_ssize_t p, Py_ssize_t end, uint8_t code
) noexcept nogil:
    """Whether a canonical section `00 53 code` and at least one byte more are at p."""
    return end - p >= 4 and d[p] == 0 and d[p + 1] == 0x53 and d[p + 2] == code


cdef inline Py_ssize_t data_section_end(
    const uint8_t* d, Py_ssize_t p, Py_ssize_t end, Py_ssize_t* content
) noexcept nogil:
    """The end of the canonical data section at p, and where its content begins."""
    if not is_section(d, p, end, DATA) or (d[p + 3] != 0xA0 and d[p + 3] != 0xB0):
        return -1
    content[0] = content_start(d, p + 3)
    return variable_end(d, p + 3, end)


cdef inline uint8_t* put_section_code(uint8_t* out, uint8_t code) noexcept nogil:
    out[0] = 0
    out[1] = 0x53
    out[2] = code
    return out + 3


cdef inline uint8_t* put_data_head(uint8_t* out, Py_ssize_t length) noexcept nogil:
    """Write a data section up to its content, which has `length` bytes."""
    return put_variable_head(put_section_code(out, DATA), 0xA0, length)


cdef inline Py_ssize_t open_list(
    const uint8_t* d, Py_ssize_t p, Py_ssize_t end, Py_ssize_t* count, Py_ssize_t* stop
) noexcept nogil:
    """The first field, number of fields and end of the list0 or list8 at p."""
    if p < end and d[p] == 0x45:
        count[0] = 0
        stop[0] = p + 1
        return p + 1
    if end - p < 3 or d[p] != 0xC0:
        return -1
    stop[0] = p + 2 + d[p + 1]
    count[0] = d[p + 2]
    return p + 3 if p + 3 <= stop[0] <= end else -1


cdef inline Py_ssize_t open_map(
    const uint8_t* d, Py_ssize_t p, Py_ssize_t end, Py_ssize_t* count, Py_ssize_t* stop
) noexcept nogil:
    """The first key, number of pairs (at most PAIRS_MAX) and end of the map at p."""
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


cdef inline bint has_simple_pairs(
    const uint8_t* d, Py_ssize_t p, Py_ssize_t stop, Py_ssize_t count, bint symbol_keys
) noexcept nogil:
    """Whether d[p:stop] is `count` pairs: a string, or a symbol if allowed, and a simple value."""
    while count:
        if p >= stop or not (is_string(d[p]) or (symbol_keys and is_symbol(d[p]))):
            return False
        p = simple_end(d, p, stop)
        if p < 0:
            return False
        p = simple_end(d, p, stop)
        if p < 0:
            return False
        count -= 1
    return p == stop


cdef inline int fill_field_table(uint16_t* table, tuple fields) except -1:
    """Set bit i of table[code] if field i of a list section may have the constructor `code`."""
    cdef int i, code
    for code in range(256):
        table[code] = 0
    for i, codes in enumerate(fields):
        for code in codes:
            table[code] |= <uint16_t>(1 << i)
    return 0


# --- common delivered events ----------------------------------------------------------------------
#
#     [delivery-annotations] message-annotations [properties] [application-properties] data
#
# The annotations begin with those of the service, as Penstock and Event Hubs write them; keys are
# strings or symbols; values are those of `simple_end`. Nearly all events have this form.


cdef struct CommonEvent:
    int64_t sequence_number
    int64_t enqueued_ms
    Py_ssize_t offset, offset_size
    Py_ssize_t key, key_size  # -1 and 0 without a partition key
    Py_ssize_t publisher, publisher_size  # -1 and 0 without a publisher
    Py_ssize_t annotations, annotation_count  # pairs after the service's
    Py_ssize_t fields, field_count, fields_set  # of the properties section
    Py_ssize_t properties, property_count  # pairs of the application properties
    Py_ssize_t body, body_size


cdef inline const char* epoch_and_sequence() noexcept nogil:
    return b"\xa3\x1bx-opt-sequence-number-epoch\x54\xff\xa3\x15x-opt-sequence-number\x81"


cdef inline const char* offset_name() noexcept nogil:
    return b"\xa3\x0cx-opt-offset\xa1"


cdef inline const char* enqueued_name() noexcept nogil:
    return b"\xa3\x13x-opt-enqueued-time\x83"


cdef inline bint is_service_annotation(const uint8_t* name, Py_ssize_t size) noexcept nogil:
    if size == 12:
        return not memcmp(name, <const char*>b"x-opt-offset", 12)
    if size == 19:
        return not memcmp(name, <const char*>b"x-opt-enqueued-time", 19)
    if size == 21:
        return not memcmp(name, <const char*>b"x-opt-sequence-number", 21)
    return size == 27 and not memcmp(name, <const char*>b"x-opt-sequence-number-epoch", 27)


cdef inline bint find_own_annotations(
    const uint8_t* d, Py_ssize_t p, Py_ssize_t stop, CommonEvent* event
) noexcept nogil:
    """Check the pairs after the service's and find partition key and publisher, both strings."""
    cdef Py_ssize_t i, name, size
    if not has_simple_pairs(d, p, stop, event.annotation_count, True):
        return False
    for i in range(event.annotation_count):
        name = content_start(d, p)
        p = variable_end(d, p, stop)
        size = p - name
        if size >= 12 and not memcmp(d + name, <const char*>b"x-opt-", 6):
            if size == 19 and not memcmp(d + name, <const char*>b"x-opt-partition-key", 19):
                if event.key >= 0 or not is_string(d[p]):
                    return False
                event.key = content_start(d, p)
                event.key_size = variable_end(d, p, stop) - event.key
            elif size == 15 and not memcmp(d + name, <const char*>b"x-opt-publisher", 15):
                if event.publisher >= 0 or not is_string(d[p]):
                    return False
                event.publisher = content_start(d, p)
                event.publisher_size = variable_end(d, p, stop) - event.publisher
            elif is_service_annotation(d + name, size):
                return False  # a second one: the last would count
        p = simple_end(d, p, stop)
    return True


cdef inline Py_ssize_t find_annotations(
    const uint8_t* d, Py_ssize_t p, Py_ssize_t end, CommonEvent* event
) noexcept nogil:
    """The end of the message-annotations map at p, after finding what is in it."""
    cdef Py_ssize_t count, stop
    p = open_map(d, p, end, &count, &stop)
    if p < 0 or count < 4:
        return -1
    if stop - p < EPOCH_AND_SEQUENCE_BYTES + 8 + OFFSET_BYTES + 1 + ENQUEUED_BYTES + 8:
        return -1
    if memcmp(d + p, epoch_and_sequence(), EPOCH_AND_SEQUENCE_BYTES):
        return -1
    p += EPOCH_AND_SEQUENCE_BYTES
    event.sequence_number = <int64_t>be64(d + p)
    p += 8
    if memcmp(d + p, offset_name(), OFFSET_BYTES):
        return -1
    p += OFFSET_BYTES + 1
    event.offset = p
    event.offset_size = d[p - 1]
    p += event.offset_size
    if stop - p < ENQUEUED_BYTES + 8 or not is_ascii(d + event.offset, event.offset_size):
        return -1
    if memcmp(d + p, enqueued_name(), ENQUEUED_BYTES):
        return -1
    p += ENQUEUED_BYTES
    event.enqueued_ms = <int64_t>be64(d + p)
    event.annotations = p + 8
    event.annotation_count = count - 4
    event.key = event.publisher = -1
    event.key_size = event.publisher_size = 0
    return stop if find_own_annotations(d, p + 8, stop, event) else -1


cdef inline Py_ssize_t find_fields(
    const uint8_t* d, Py_ssize_t p, Py_ssize_t end, CommonEvent* event
) noexcept nogil:
    """The end of the properties list at p, after counting its fields."""
    cdef Py_ssize_t stop, i
    p = open_list(d, p, end, &event.field_count, &stop)
    if p < 0 or event.field_count > 13:
        return -1
    event.fields = p
    for i in range(event.field_count):
        if p < stop and d[p] != 0x40:
            event.fields_set += 1
        p = simple_end(d, p, stop)
        if p < 0:
            return -1
    return stop if p == stop else -1


cdef inline bint find_common_event(
    const uint8_t* d, Py_ssize_t p, Py_ssize_t end, CommonEvent* event
) noexcept nogil:
    """Whether the message d[p:end] is a common event, and where its parts are.

    If it is, every length in it has been checked, and the pure-Python implementation accepts it.
    """
    cdef Py_ssize_t stop
    event.fields = event.properties = -1
    event.field_count = event.fields_set = event.property_count = 0
    if is_section(d, p, end, DELIVERY_ANNOTATIONS):
        # The kernels skip these by their length, without checking the pairs.
        if d[p + 3] != 0xC1 and d[p + 3] != 0xD1:
            return False
        p = variable_end(d, p + 3, end)
        if p < 0:
            return False
    if not is_section(d, p, end, MESSAGE_ANNOTATIONS):
        return False
    p = find_annotations(d, p + 3, end, event)
    if p < 0:
        return False
    if is_section(d, p, end, PROPERTIES):
        p = find_fields(d, p + 3, end, event)
        if p < 0:
            return False
    if is_section(d, p, end, APPLICATION_PROPERTIES):
        p = open_map(d, p + 3, end, &event.property_count, &stop)
        if p < 0 or not has_simple_pairs(d, p, stop, event.property_count, True):
            return False
        event.properties = p
        p = stop
    if data_section_end(d, p, end, &event.body) != end:
        return False
    event.body_size = end - event.body
    return True


# --- the bounds of messages -----------------------------------------------------------------------


cdef inline int64_t* copy_bounds(object bounds, Py_ssize_t size, Py_ssize_t* count) except? NULL:
    """The bounds as C numbers, which the caller frees.

    NULL without an error if one is outside of `size` bytes or their number is odd. This is a copy
    because a callback of the caller could change the list during the loop over it.
    """
    cdef list numbers = bounds if type(bounds) is list else list(bounds)
    cdef Py_ssize_t i, length = len(numbers)
    cdef int64_t* copy
    count[0] = length
    if length & 1:
        return NULL
    copy = <int64_t*>malloc(8 * length + 8)
    if copy == NULL:
        raise MemoryError("the bounds of events")
    try:
        for i in range(length):
            # Converting a number can run Python code, which could shorten the list.
            copy[i] = numbers[i] if i < len(numbers) else -1
            if copy[i] < 0 or copy[i] > size:
                free(copy)
                return NULL
    except BaseException:
        free(copy)
        raise
    return copy
