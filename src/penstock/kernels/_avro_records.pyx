# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""`AvroRecordWriter`, compiled.

Records of common events are written in C, the record of every other event is copied from the
pure-Python implementation.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int8_t, int16_t, int32_t

from penstock.kernels._buffer cimport Buffer, append, release, reserve, take_bytes
from penstock.kernels._message cimport (
    DECIMAL_BYTES_MAX, CommonEvent, be32, be64, content_start, copy_bounds, find_common_event, free,
    int64_t, is_text, memcpy, put_decimal, simple_end, uint8_t, uint32_t, uint64_t, variable_end,
)

from penstock.kernels._pure import avro_records as _pure
from penstock.kernels._pure.decoded_event import FIELDS as _FIELDS
from penstock.kernels._pure.values import KernelError

cdef enum:
    TIME_TEXT_MAX = 64
    # The most bytes by which a record is longer than its message: name and branch of each field,
    # and for 255 pairs in each of two maps longer lengths and numbers that become text.
    RECORD_MORE = 2 * 255 * 32 + 13 * 64 + 1024

# Names and branches of the pairs that every record has.
cdef bytes NUMBER_HEAD = b"\x2ax-opt-sequence-number\x00"
cdef bytes OFFSET_HEAD = b"\x18x-opt-offset\x04"
cdef bytes TIME_HEAD = b"\x26x-opt-enqueued-time\x00"
cdef bytes KEY_HEAD = b"\x26x-opt-partition-key\x04"
# The fields' names, each with its length in front.
cdef tuple FIELD_HEADS = tuple(_pure.encode_bytes(name) for name in _FIELDS)


cdef inline void put_byte(Buffer* out, uint8_t byte) noexcept nogil:
    out.data[out.used] = byte
    out.used += 1


cdef inline void put_long(Buffer* out, int64_t number) noexcept nogil:
    """Zigzag, seven bits at a time."""
    cdef uint64_t left = (<uint64_t>number << 1) ^ <uint64_t>(number >> 63)
    while left > 0x7F:
        put_byte(out, <uint8_t>(left & 0x7F) | 0x80)
        left >>= 7
    put_byte(out, <uint8_t>left)


cdef inline void put_text(Buffer* out, const void* text, Py_ssize_t size) noexcept nogil:
    put_long(out, size)
    append(out, text, size)


cdef inline void put_constant(Buffer* out, bytes text) noexcept:
    append(out, PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text))


cdef void put_decimal_text(Buffer* out, uint64_t number) noexcept nogil:
    cdef uint8_t digits[DECIMAL_BYTES_MAX]
    cdef Py_ssize_t size = put_decimal(digits, number)
    put_text(out, digits, size)


cdef inline void put_integer(Buffer* out, int64_t number) noexcept nogil:
    put_byte(out, 0)
    put_long(out, number)


cdef bint put_simple(Buffer* out, const uint8_t* d, Py_ssize_t p, Py_ssize_t end) noexcept nogil:
    """Write the union value of the value at p; false for a type that `other` must encode."""
    cdef uint8_t code = d[p]
    cdef Py_ssize_t text, i
    if is_text(code) or code == 0xA0 or code == 0xB0:
        put_byte(out, 4 if is_text(code) else 6)
        text = content_start(d, p)
        put_text(out, d + text, variable_end(d, p, end) - text)
    elif code == 0x40:
        put_byte(out, 4)
        put_byte(out, 0)
    elif code == 0x41 or code == 0x42 or code == 0x56:
        put_byte(out, 4)
        if code == 0x41 or (code == 0x56 and d[p + 1]):
            put_text(out, <const char*>b"true", 4)
        else:
            put_text(out, <const char*>b"false", 5)
    elif code == 0x43 or code == 0x44:
        put_integer(out, 0)
    elif code == 0x50 or code == 0x52 or code == 0x53:
        put_integer(out, d[p + 1])
    elif code == 0x51 or code == 0x54 or code == 0x55:
        put_integer(out, <int8_t>d[p + 1])
    elif code == 0x60:
        put_integer(out, (<int64_t>d[p + 1] << 8) | d[p + 2])
    elif code == 0x61:
        put_integer(out, <int16_t>((<uint32_t>d[p + 1] << 8) | d[p + 2]))
    elif code == 0x70:
        put_integer(out, be32(d + p + 1))
    elif code == 0x71:
        put_integer(out, <int32_t>be32(d + p + 1))
    elif code == 0x80 and d[p + 1] & 0x80:
        put_byte(out, 4)
        put_decimal_text(out, be64(d + p + 1))
    elif code == 0x80 or code == 0x81:
        put_integer(out, <int64_t>be64(d + p + 1))
    elif code == 0x82:
        put_byte(out, 2)
        for i in range(8, 0, -1):
            put_byte(out, d[p + i])
    else:
        return False
    return True


cdef class AvroRecordWriter:
    """See the pure-Python implementation."""

    cdef object other
    cdef object pure  # writes the records of uncommon events, one at a time
    cdef object time_text
    cdef Py_ssize_t bytes_max
    cdef Py_ssize_t row_count
    cdef int64_t time_unit
    cdef int64_t time  # whose text is in `shown`, in units
    cdef uint8_t shown[TIME_TEXT_MAX]  # the text of that time
    cdef Py_ssize_t shown_size
    cdef bint busy
    cdef Py_ssize_t message_end
    cdef Buffer out

    def __init__(
        self, other, *, bint iso_time=False, Py_ssize_t block_bytes_max=_pure.BLOCK_BYTES_MAX
    ):
        self.pure = _pure.AvroRecordWriter(
            other, iso_time=iso_time, block_bytes_max=block_bytes_max
        )
        self.other = other
        self.time_text = _pure._iso_time if iso_time else _pure._usual_time
        self.time_unit = 1 if iso_time else 1000
        self.bytes_max = block_bytes_max

    def __dealloc__(self):
        release(&self.out, 0)

    @property
    def rows(self):
        return self.row_count

    @property
    def size(self):
        return self.out.used

    def add(self, bytes data not None, object bounds not None):
        """Add delivered messages; see the pure-Python implementation."""
        cdef Py_ssize_t i, count = 0
        cdef int64_t* spans
        if self.busy:
            raise RuntimeError("an AvroRecordWriter is used inside its own `other`")
        spans = copy_bounds(bounds, PyBytes_GET_SIZE(data), &count)
        if spans == NULL:
            _pure.message_bounds(data, bounds)  # raises the error
            return
        self.busy = True
        try:
            for i in range(0, count, 2):
                self.add_event(data, spans[i], spans[i + 1])
        finally:
            free(spans)
            self.busy = False

    def take(self):
        """Return all records and remove them; see the pure-Python implementation."""
        if self.busy:
            raise RuntimeError("an AvroRecordWriter is used inside its own `other`")
        self.row_count = 0
        return take_bytes(&self.out)

    cdef int add_event(self, bytes data, Py_ssize_t start, Py_ssize_t end) except -1:
        """Add one record. After an error the block is as before."""
        cdef CommonEvent event
        cdef const uint8_t* d = <const uint8_t*>PyBytes_AS_STRING(data)
        cdef Py_ssize_t before = self.out.used
        cdef bytes record
        try:
            if start <= end and find_common_event(d, start, end, &event):
                self.message_end = end
                reserve(&self.out, end - start + RECORD_MORE)
                self.put_event(d, &event)
            if self.out.used == before or self.out.used > self.bytes_max:
                self.out.used = before
                self.pure.take()  # remove what an error left
                self.pure.add(data, [start, end])
                record = self.pure.take()
                reserve(&self.out, PyBytes_GET_SIZE(record))
                put_constant(&self.out, record)
            if self.out.used > self.bytes_max:
                raise KernelError(
                    f"a block would hold more than {self.bytes_max} bytes: take it before"
                )
        except BaseException:
            self.out.used = before
            raise
        self.row_count += 1
        return 0

    cdef int put_event(self, const uint8_t* d, CommonEvent* event) except -1:
        cdef Buffer* out = &self.out
        cdef Py_ssize_t count
        put_long(out, event.sequence_number)
        put_text(out, d + event.offset, event.offset_size)
        self.put_time(event.enqueued_ms)
        count = 3 + event.annotation_count + event.fields_set
        put_long(out, count)
        put_constant(out, NUMBER_HEAD)
        put_long(out, event.sequence_number)
        put_constant(out, OFFSET_HEAD)
        put_text(out, d + event.offset, event.offset_size)
        put_constant(out, TIME_HEAD)
        put_long(out, event.enqueued_ms)
        if event.key >= 0:
            put_constant(out, KEY_HEAD)
            put_text(out, d + event.key, event.key_size)
        if event.annotation_count:
            self.put_pairs(d, event.annotations, event.annotation_count, event.key)
        if event.fields_set:
            self.put_fields(d, event)
        put_byte(out, 0)
        if event.property_count:
            put_long(out, event.property_count)
            self.put_pairs(d, event.properties, event.property_count, -1)
        put_byte(out, 0)
        put_byte(out, 2)
        put_text(out, d + event.body, event.body_size)
        return 0

    cdef int put_time(self, int64_t milliseconds) except -1:
        """Write the time's text, which most consecutive events share: it is formatted once."""
        cdef int64_t time = milliseconds // self.time_unit
        cdef bytes text
        if time * self.time_unit > milliseconds:
            time -= 1  # C divides towards zero
        if not self.shown_size or time != self.time:
            text = self.time_text(time)
            assert PyBytes_GET_SIZE(text) <= TIME_TEXT_MAX
            self.shown_size = PyBytes_GET_SIZE(text)
            memcpy(self.shown, PyBytes_AS_STRING(text), self.shown_size)
            self.time = time
        put_text(&self.out, self.shown, self.shown_size)
        return 0

    cdef int put_pairs(
        self, const uint8_t* d, Py_ssize_t p, Py_ssize_t count, Py_ssize_t without
    ) except -1:
        """All pairs but the one whose value's text is at `without`."""
        cdef Py_ssize_t name, value, end = 0x7FFFFFFFFFFFFFFF  # `find_common_event` has checked the lengths
        while count:
            name = p
            value = variable_end(d, p, end)
            p = simple_end(d, value, end)
            if content_start(d, value) != without:
                name = content_start(d, name)
                put_text(&self.out, d + name, value - name)
                self.put_value(d, value, p)
            count -= 1
        return 0

    cdef int put_fields(self, const uint8_t* d, CommonEvent* event) except -1:
        cdef Py_ssize_t i, after, p = event.fields
        for i in range(event.field_count):
            after = simple_end(d, p, 0x7FFFFFFFFFFFFFFF)
            if d[p] != 0x40:
                put_constant(&self.out, <bytes>FIELD_HEADS[i])
                self.put_value(d, p, after)
            p = after
        return 0

    cdef int put_value(self, const uint8_t* d, Py_ssize_t p, Py_ssize_t after) except -1:
        cdef object union
        if put_simple(&self.out, d, p, after):
            return 0
        union = self.other(PyBytes_FromStringAndSize(<const char*>d + p, after - p))
        if not isinstance(union, bytes):
            raise TypeError(f"`other` gave {type(union).__name__}, no bytes")
        # Also for the remainder of the record: the room reserved before is used up in part.
        reserve(&self.out, PyBytes_GET_SIZE(union) + self.message_end - after + RECORD_MORE)
        put_constant(&self.out, <bytes>union)
        return 0
