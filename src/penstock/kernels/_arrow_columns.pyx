# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""`ArrowColumnBuilder`, compiled: the same columns, sizes and errors as the pure twin in `_pure.arrow_columns`.

Usual events go into buffers that grow, in C and without an object each; every other event is
gathered by the pure twin alone, and its row copied behind those that are there.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free
from libc.math cimport isfinite
from libc.stdint cimport int8_t, int16_t, int32_t
from libc.string cimport memset

from penstock.kernels._message cimport (
    Buffer,
    Event,
    append,
    be32,
    be64,
    free,
    int64_t,
    is_text,
    memcpy,
    release,
    reserve,
    spans_of,
    taken_bytes,
    text_start,
    uint8_t,
    uint32_t,
    uint64_t,
    usual_event,
    value_end,
    variable_end,
)

from penstock.kernels._pure import arrow_columns as _pure
from penstock.kernels._pure.decoded_event import FIELDS as _FIELDS
from penstock.kernels._pure.values import KernelError

_bounds_of = _pure.message_bounds
_Gathered = _pure.ArrowColumns
_Maps = _pure.MapColumn
_Texts = _pure.TextColumn

cdef extern from "Python.h":
    const char* PyUnicode_AsUTF8AndSize(object text, Py_ssize_t* size) except NULL
    char* PyOS_double_to_string(double value, char form, int precision, int flags, int* kind) except NULL
    int Py_DTSF_ADD_DOT_0

cdef Py_ssize_t ROW_BYTES = _pure.ROW_BYTES
cdef Py_ssize_t PAIR_BYTES = _pure.PAIR_BYTES
cdef int64_t US_MAX = <int64_t>0x7FFFFFFFFFFFFFFF
cdef tuple FIELD_NAMES = tuple(_FIELDS)
cdef bytes HEX = b"0123456789abcdef"


cdef struct Column:
    Buffer ends
    Buffer data
    Buffer valid  # a byte of 0 or 1 each
    Py_ssize_t count
    Py_ssize_t missing


cdef struct Mark:
    Py_ssize_t count
    Py_ssize_t data
    Py_ssize_t missing


cdef inline Mark mark_of(Column* column) noexcept nogil:
    cdef Mark mark
    mark.count = column.count
    mark.data = column.data.used
    mark.missing = column.missing
    return mark


cdef inline void go_back(Column* column, Mark mark) noexcept nogil:
    column.count = mark.count
    column.data.used = mark.data
    column.missing = mark.missing
    column.ends.used = 4 * mark.count + 4
    column.valid.used = mark.count


cdef inline void put_end(Column* column, bint is_valid) noexcept nogil:
    """The text ends where the data does now. There is room for it."""
    (<int32_t*>(column.ends.data + column.ends.used))[0] = <int32_t>column.data.used
    column.ends.used += 4
    column.valid.data[column.valid.used] = is_valid
    column.valid.used += 1
    column.count += 1
    column.missing += not is_valid


cdef inline int end_text(Column* column, bint is_valid) except -1:
    reserve(&column.ends, 4)
    reserve(&column.valid, 1)
    put_end(column, is_valid)
    return 0


cdef int begin_ends(Buffer* ends) except -1:
    """Ends begin with a zero."""
    reserve(ends, 4)
    (<int32_t*>ends.data)[0] = 0
    ends.used = 4
    return 0


cdef inline int put_text(Column* column, const void* text, Py_ssize_t size) except -1:
    """There is room for its end."""
    reserve(&column.data, size)
    append(&column.data, text, size)
    put_end(column, True)
    return 0


cdef inline int add_text(Column* column, const void* text, Py_ssize_t size, bint is_valid) except -1:
    reserve(&column.data, size)
    append(&column.data, text, size)
    return end_text(column, is_valid)


cdef void free_column(Column* column) noexcept:
    release(&column.ends, 0)
    release(&column.data, 0)
    release(&column.valid, 0)
    column.count = column.missing = 0


cdef object taken_column(Column* column):
    cdef bytes bits = None
    cdef uint8_t* out
    cdef Py_ssize_t i
    if column.missing:
        bits = PyBytes_FromStringAndSize(NULL, (column.count + 7) >> 3)
        out = <uint8_t*>PyBytes_AS_STRING(bits)
        memset(out, 0, (column.count + 7) >> 3)
        if column.missing < column.count:
            for i in range(column.count):
                out[i >> 3] |= column.valid.data[i] << (i & 7)
    return _Texts(taken_bytes(&column.ends), taken_bytes(&column.data), bits)


cdef int begin_column(Column* column) except -1:
    column.count = column.missing = 0
    column.data.used = column.valid.used = 0
    return begin_ends(&column.ends)


cdef int reserve_column(Column* column, Py_ssize_t more) except -1:
    reserve(&column.ends, 4 * more)
    return reserve(&column.valid, more)


cdef struct MapColumn:
    Buffer ends
    Column names
    Column values


cdef inline int end_map(MapColumn* column) except -1:
    cdef int32_t end = <int32_t>column.names.count
    reserve(&column.ends, 4)
    append(&column.ends, &end, 4)
    return 0


cdef object taken_map(MapColumn* column):
    return _Maps(
        taken_bytes(&column.ends), taken_column(&column.names), taken_column(&column.values)
    )


cdef void free_map(MapColumn* column) noexcept:
    release(&column.ends, 0)
    free_column(&column.names)
    free_column(&column.values)


cdef int put_integer(Buffer* out, uint64_t magnitude, bint is_negative) except -1:
    cdef uint8_t digits[21]
    cdef Py_ssize_t i = 21
    while True:
        i -= 1
        digits[i] = 0x30 + <uint8_t>(magnitude % 10)
        magnitude //= 10
        if magnitude == 0:
            break
    if is_negative:
        i -= 1
        digits[i] = 0x2D
    reserve(out, 21 - i)
    append(out, &digits[i], 21 - i)
    return 0


cdef inline int put_signed(Buffer* out, int64_t number) except -1:
    if number < 0:
        return put_integer(out, <uint64_t>0 - <uint64_t>number, True)
    return put_integer(out, <uint64_t>number, False)


cdef int put_quoted(Buffer* out, const uint8_t* text, Py_ssize_t size) except -1:
    """As JSON writes it; what is not ASCII stays."""
    cdef Py_ssize_t i, start = 0
    cdef uint8_t byte, short
    reserve(out, size + 2)
    out.data[out.used] = 0x22
    out.used += 1
    for i in range(size):
        byte = text[i]
        if byte >= 0x20 and byte != 0x22 and byte != 0x5C:
            continue
        append(out, text + start, i - start)
        start = i + 1
        reserve(out, size - i + 8)
        out.data[out.used] = 0x5C
        out.used += 1
        short = 0
        if byte == 0x22 or byte == 0x5C:
            short = byte
        elif byte == 0x0A:
            short = 0x6E
        elif byte == 0x0D:
            short = 0x72
        elif byte == 0x09:
            short = 0x74
        elif byte == 0x0C:
            short = 0x66
        elif byte == 0x08:
            short = 0x62
        if short:
            out.data[out.used] = short
            out.used += 1
        else:
            append(out, <const char*>b"u00", 3)
            out.data[out.used] = PyBytes_AS_STRING(HEX)[byte >> 4]
            out.data[out.used + 1] = PyBytes_AS_STRING(HEX)[byte & 15]
            out.used += 2
    append(out, text + start, size - start)
    out.data[out.used] = 0x22
    out.used += 1
    return 0


cdef int put_double(Buffer* out, double real) except -1:
    cdef char* shown = PyOS_double_to_string(real, c"r", 0, Py_DTSF_ADD_DOT_0, NULL)
    cdef Py_ssize_t size = 0
    while shown[size]:
        size += 1
    try:
        reserve(out, size)
        append(out, shown, size)
    finally:
        PyMem_Free(shown)
    return 0


cdef class ArrowColumnBuilder:
    """See the pure twin."""

    cdef object other
    cdef object pure  # for one row at a time
    cdef bint with_properties, with_system, json, busy
    cdef Py_ssize_t bytes_max
    cdef Py_ssize_t row_count
    cdef Py_ssize_t row_room
    cdef Buffer numbers, times
    cdef Column body, offset, publisher, key
    cdef MapColumn properties, system

    def __init__(
        self,
        other,
        *,
        bint properties=True,
        bint system=True,
        bint json=True,
        Py_ssize_t buffer_bytes_max=_pure.BUFFER_BYTES_MAX,
    ):
        self.pure = _pure.ArrowColumnBuilder(
            other,
            properties=properties,
            system=system,
            json=json,
            buffer_bytes_max=buffer_bytes_max,
        )
        self.other = other
        self.with_properties = properties
        self.with_system = system
        self.json = json
        self.bytes_max = buffer_bytes_max
        self.begin()

    def __dealloc__(self):
        release(&self.numbers, 0)
        release(&self.times, 0)
        free_column(&self.body)
        free_column(&self.offset)
        free_column(&self.publisher)
        free_column(&self.key)
        free_map(&self.properties)
        free_map(&self.system)

    @property
    def rows(self):
        return self.row_count

    @property
    def size(self):
        cdef Py_ssize_t texts = (
            self.body.data.used + self.offset.data.used + self.publisher.data.used
            + self.key.data.used
        )
        cdef Py_ssize_t maps = (
            self.properties.names.data.used + self.properties.values.data.used
            + self.system.names.data.used + self.system.values.data.used
        )
        cdef Py_ssize_t pairs = self.properties.names.count + self.system.names.count
        return self.row_count * ROW_BYTES + pairs * PAIR_BYTES + texts + maps

    def add(self, bytes data not None, object bounds not None):
        """Add delivered messages; see the pure twin."""
        cdef Py_ssize_t i, count = 0
        cdef int64_t* spans
        if self.busy:
            raise RuntimeError("an ArrowColumnBuilder is used inside its own `other`")
        spans = spans_of(bounds, PyBytes_GET_SIZE(data), &count)
        if spans == NULL:
            _bounds_of(data, bounds)  # which says what is wrong
            return
        self.busy = True
        try:
            for i in range(0, count, 2):
                self.add_one(data, spans[i], spans[i + 1])
        finally:
            free(spans)
            self.busy = False

    def take(self):
        """Everything since the last time; see the pure twin."""
        if self.busy:
            raise RuntimeError("an ArrowColumnBuilder is used inside its own `other`")
        cdef object taken = _Gathered(
            self.row_count,
            taken_bytes(&self.numbers),
            taken_bytes(&self.times),
            taken_column(&self.body),
            taken_column(&self.offset),
            taken_column(&self.publisher),
            taken_column(&self.key),
            taken_map(&self.properties),
            taken_map(&self.system),
        )
        self.begin()
        return taken

    cdef int begin(self) except -1:
        """Without a row."""
        self.row_count = self.row_room = 0
        self.numbers.used = self.times.used = 0
        begin_column(&self.body)
        begin_column(&self.offset)
        begin_column(&self.publisher)
        begin_column(&self.key)
        begin_column(&self.properties.names)
        begin_column(&self.properties.values)
        begin_column(&self.system.names)
        begin_column(&self.system.values)
        begin_ends(&self.properties.ends)
        begin_ends(&self.system.ends)
        return 0

    cdef int reserve_rows(self) except -1:
        """Room for all that has one place in each row: asked for once in many rows."""
        cdef Py_ssize_t more = self.row_count // 2 + 1024
        reserve(&self.numbers, 8 * more)
        reserve(&self.times, 8 * more)
        reserve_column(&self.body, more)
        reserve_column(&self.offset, more)
        reserve_column(&self.publisher, more)
        reserve_column(&self.key, more)
        reserve(&self.properties.ends, 4 * more)
        reserve(&self.system.ends, 4 * more)
        self.row_room = self.row_count + more
        return 0

    cdef int add_one(self, bytes data, Py_ssize_t start, Py_ssize_t end) except -1:
        """One row, or none and an error."""
        cdef Event event
        cdef const uint8_t* d = <const uint8_t*>PyBytes_AS_STRING(data)
        cdef Mark body = mark_of(&self.body), offset = mark_of(&self.offset)
        cdef Mark publisher = mark_of(&self.publisher), key = mark_of(&self.key)
        cdef Mark names = mark_of(&self.properties.names), values = mark_of(&self.properties.values)
        cdef Mark said = mark_of(&self.system.names), told = mark_of(&self.system.values)
        cdef Py_ssize_t rows = self.row_count
        cdef bint done = False
        try:
            if start <= end and usual_event(d, start, end, &event):
                self.put_usual(d, &event)
                done = self.fits()
            if not done:
                self.back(rows, body, offset, publisher, key, names, values, said, told)
                self.put_pure(data, start, end)
                if not self.fits():
                    raise KernelError(
                        f"a column would hold more than {self.bytes_max} bytes or texts: "
                        "take it before"
                    )
        except BaseException:
            self.back(rows, body, offset, publisher, key, names, values, said, told)
            raise
        return 0

    cdef void back(
        self, Py_ssize_t rows, Mark body, Mark offset, Mark publisher, Mark key, Mark names,
        Mark values, Mark said, Mark told
    ) noexcept:
        """To the state before a row."""
        self.row_count = rows
        self.numbers.used = self.times.used = 8 * rows
        self.properties.ends.used = self.system.ends.used = 4 * rows + 4
        go_back(&self.body, body)
        go_back(&self.offset, offset)
        go_back(&self.publisher, publisher)
        go_back(&self.key, key)
        go_back(&self.properties.names, names)
        go_back(&self.properties.values, values)
        go_back(&self.system.names, said)
        go_back(&self.system.values, told)

    cdef bint fits(self) noexcept:
        """No event is larger than 2**32 bytes: one row too many never overflows a count."""
        cdef Py_ssize_t most = self.body.data.used
        most = max(most, self.offset.data.used, self.publisher.data.used, self.key.data.used)
        most = max(most, self.properties.names.data.used, self.properties.values.data.used)
        most = max(most, self.system.names.data.used, self.system.values.data.used)
        most = max(most, self.row_count, self.properties.names.count, self.system.names.count)
        return most <= self.bytes_max

    cdef int put_place(self, int64_t number, int64_t microseconds) except -1:
        """Begins a row, for all whose columns there is room behind this."""
        if self.row_count >= self.row_room:
            self.reserve_rows()
        (<int64_t*>(self.numbers.data + self.numbers.used))[0] = number
        (<int64_t*>(self.times.data + self.times.used))[0] = microseconds
        self.numbers.used += 8
        self.times.used += 8
        self.row_count += 1
        return 0

    cdef int put_usual(self, const uint8_t* d, Event* event) except -1:
        cdef int64_t time = event.enqueued_ms
        if time > US_MAX // 1000:
            time = US_MAX
        elif time < -(US_MAX // 1000):
            time = -US_MAX - 1
        else:
            time *= 1000
        self.put_place(event.sequence_number, time)
        put_text(&self.body, d + event.body, event.body_size)
        put_text(&self.offset, d + event.offset, event.offset_size)
        if event.publisher < 0:
            put_end(&self.publisher, False)
        else:
            put_text(&self.publisher, d + event.publisher, event.publisher_size)
        if event.key < 0:
            put_end(&self.key, False)
        else:
            put_text(&self.key, d + event.key, event.key_size)
        if self.with_properties and event.property_count:
            self.put_pairs(&self.properties, d, event.properties, event.property_count)
        end_map(&self.properties)
        if self.with_system:
            if event.annotation_count:
                self.put_pairs(&self.system, d, event.annotations, event.annotation_count)
            if event.fields_set:
                self.put_fields(d, event)
        return end_map(&self.system)

    cdef int put_pairs(
        self, MapColumn* column, const uint8_t* d, Py_ssize_t p, Py_ssize_t count
    ) except -1:
        cdef Py_ssize_t name, end = 0x7FFFFFFFFFFFFFFF  # every length was checked before
        while count:
            name = text_start(d, p)
            p = variable_end(d, p, end)
            add_text(&column.names, d + name, p - name, True)
            p = self.put_value(&column.values, d, p, end)
            count -= 1
        return 0

    cdef int put_fields(self, const uint8_t* d, Event* event) except -1:
        cdef Py_ssize_t i, p = event.fields
        cdef bytes name
        for i in range(event.field_count):
            if d[p] == 0x40:
                p += 1
                continue
            name = <bytes>FIELD_NAMES[i]
            add_text(&self.system.names, PyBytes_AS_STRING(name), PyBytes_GET_SIZE(name), True)
            p = self.put_value(&self.system.values, d, p, 0x7FFFFFFFFFFFFFFF)
        return 0

    cdef Py_ssize_t put_value(
        self, Column* column, const uint8_t* d, Py_ssize_t p, Py_ssize_t end
    ) except -1:
        """The text of the value at p; behind it."""
        cdef uint8_t code = d[p]
        cdef Buffer* out = &column.data
        cdef Py_ssize_t after, text
        cdef bint is_valid = True
        if is_text(code):
            text = text_start(d, p)
            after = variable_end(d, p, end)
            if not self.json:
                add_text(column, d + text, after - text, True)
                return after
            put_quoted(out, d + text, after - text)
        elif code == 0x40:
            after = p + 1
            is_valid = self.json
            if is_valid:
                reserve(out, 4)
                append(out, <const char*>b"null", 4)
        else:
            after = value_end(d, p, end)
            if not put_number(out, d, p):
                self.put_other(out, d + p, after - p)
        end_text(column, is_valid)
        return after

    cdef int put_other(self, Buffer* out, const uint8_t* value, Py_ssize_t size) except -1:
        cdef object text = self.other(PyBytes_FromStringAndSize(<const char*>value, size))
        cdef Py_ssize_t length
        cdef const char* shown
        if not isinstance(text, str):
            raise TypeError(f"`other` gave {type(text).__name__}, no str")
        shown = PyUnicode_AsUTF8AndSize(text, &length)
        reserve(out, length)
        append(out, shown, length)
        return 0

    cdef int put_pure(self, bytes data, Py_ssize_t start, Py_ssize_t end) except -1:
        """The pure twin judges it, and makes its row."""
        cdef object one
        self.pure.take()  # whatever an error left
        self.pure.add(data, [start, end])
        one = self.pure.take()
        self.put_place(
            int.from_bytes(one.sequence_numbers, "little", signed=True),
            int.from_bytes(one.enqueued_us, "little", signed=True),
        )
        copy_texts(&self.body, one.body)
        copy_texts(&self.offset, one.offset)
        copy_texts(&self.publisher, one.publisher)
        copy_texts(&self.key, one.partition_key)
        copy_map(&self.properties, one.properties)
        copy_map(&self.system, one.system)
        return 0


cdef bint put_number(Buffer* out, const uint8_t* d, Py_ssize_t p) except -1:
    """A boolean, an integer or a finite double; false for another value."""
    cdef uint8_t code = d[p]
    cdef uint64_t bits
    cdef double real
    if code == 0x41 or code == 0x42 or code == 0x56:
        reserve(out, 5)
        if code == 0x41 or (code == 0x56 and d[p + 1]):
            append(out, <const char*>b"true", 4)
        else:
            append(out, <const char*>b"false", 5)
    elif code == 0x43 or code == 0x44:
        put_integer(out, 0, False)
    elif code == 0x50 or code == 0x52 or code == 0x53:
        put_integer(out, d[p + 1], False)
    elif code == 0x51 or code == 0x54 or code == 0x55:
        put_signed(out, <int8_t>d[p + 1])
    elif code == 0x60:
        put_integer(out, (<uint64_t>d[p + 1] << 8) | d[p + 2], False)
    elif code == 0x61:
        put_signed(out, <int16_t>((<uint32_t>d[p + 1] << 8) | d[p + 2]))
    elif code == 0x70:
        put_integer(out, be32(d + p + 1), False)
    elif code == 0x71:
        put_signed(out, <int32_t>be32(d + p + 1))
    elif code == 0x80:
        put_integer(out, be64(d + p + 1), False)
    elif code == 0x81:
        put_signed(out, <int64_t>be64(d + p + 1))
    elif code == 0x82:
        bits = be64(d + p + 1)
        memcpy(&real, &bits, 8)
        if not isfinite(real):
            return False
        put_double(out, real)
    else:
        return False
    return True


cdef int copy_texts(Column* column, object texts) except -1:
    """Texts of the pure twin behind ours."""
    cdef bytes ends = texts.ends, data = texts.data, valid = texts.valid
    cdef Py_ssize_t i, count = PyBytes_GET_SIZE(ends) // 4 - 1
    cdef const int32_t* places = <const int32_t*>PyBytes_AS_STRING(ends)
    cdef bint is_valid
    for i in range(count):
        is_valid = True
        if valid is not None:
            is_valid = (PyBytes_AS_STRING(valid)[i >> 3] >> (i & 7)) & 1
        add_text(
            column, PyBytes_AS_STRING(data) + places[i], places[i + 1] - places[i], is_valid
        )
    return 0


cdef int copy_map(MapColumn* column, object maps) except -1:
    copy_texts(&column.names, maps.names)
    copy_texts(&column.values, maps.values)
    return end_map(column)
