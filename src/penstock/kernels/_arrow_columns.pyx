# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""`ArrowColumnBuilder`, compiled.

Common events are appended to the buffers in C. For every other event the pure-Python implementation
builds one row, which is copied.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free
from libc.math cimport isfinite
from libc.stdint cimport int8_t, int16_t, int32_t
from libc.string cimport memset

from penstock.kernels._buffer cimport Buffer, append, release, reserve, take_bytes
from penstock.kernels._message cimport (
    DECIMAL_BYTES_MAX, CommonEvent, be32, be64, content_start, copy_bounds, find_common_event, free,
    int64_t, is_text, memcpy, put_decimal, simple_end, uint8_t, uint32_t, uint64_t, variable_end,
)

from penstock.kernels._pure import arrow_columns as _pure
from penstock.kernels._pure.decoded_event import FIELDS as _FIELDS
from penstock.kernels._pure.values import KernelError

_ArrowColumns = _pure.ArrowColumns
_MapColumn = _pure.MapColumn
_TextColumn = _pure.TextColumn

cdef extern from "Python.h":
    const char* PyUnicode_AsUTF8AndSize(object text, Py_ssize_t* size) except NULL
    char* PyOS_double_to_string(
        double value, char form, int precision, int flags, int* kind
    ) except NULL
    int Py_DTSF_ADD_DOT_0
    # As the end of values whose lengths `find_common_event` has checked.
    Py_ssize_t CHECKED "PY_SSIZE_T_MAX"

cdef Py_ssize_t ROW_BYTES = _pure.ROW_BYTES
cdef Py_ssize_t PAIR_BYTES = _pure.PAIR_BYTES
cdef int64_t US_MAX = <int64_t>0x7FFFFFFFFFFFFFFF
cdef tuple FIELD_NAMES = tuple(_FIELDS)
cdef bytes HEX = b"0123456789abcdef"


cdef enum:
    # Indexes of an ArrowColumnBuilder's columns of texts.
    BODY = 0
    OFFSET = 1
    PUBLISHER = 2
    KEY = 3
    PROPERTY_NAMES = 4
    PROPERTY_VALUES = 5
    SYSTEM_NAMES = 6
    SYSTEM_VALUES = 7
    COLUMNS = 8
    ROW_COLUMNS = 4  # those before have one text per row, the others one per pair of a map


cdef struct Column:
    Buffer ends  # int32, beginning with a 0
    Buffer data
    Buffer valid  # one byte of 0 or 1 per text
    Py_ssize_t count
    Py_ssize_t missing


cdef struct Mark:
    Py_ssize_t count, data_used, missing


cdef inline Mark mark_column(Column* column) noexcept nogil:
    cdef Mark mark
    mark.count = column.count
    mark.data_used = column.data.used
    mark.missing = column.missing
    return mark


cdef inline void reset_column(Column* column, Mark mark) noexcept nogil:
    column.count = mark.count
    column.data.used = mark.data_used
    column.missing = mark.missing
    column.ends.used = 4 * mark.count + 4
    column.valid.used = mark.count


cdef inline void put_end(Column* column, bint is_valid) noexcept nogil:
    """End a text at the end of the data. The caller has reserved room in `ends` and `valid`."""
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
    reserve(ends, 4)
    (<int32_t*>ends.data)[0] = 0
    ends.used = 4
    return 0


cdef inline int put_text(Column* column, const void* text, Py_ssize_t size) except -1:
    """Like `add_text`, after the caller has reserved room for the end."""
    reserve(&column.data, size)
    append(&column.data, text, size)
    put_end(column, True)
    return 0


cdef inline int add_text(
    Column* column, const void* text, Py_ssize_t size, bint is_valid
) except -1:
    reserve(&column.data, size)
    append(&column.data, text, size)
    return end_text(column, is_valid)


cdef void free_column(Column* column) noexcept:
    release(&column.ends, 0)
    release(&column.data, 0)
    release(&column.valid, 0)
    column.count = column.missing = 0


cdef object take_column(Column* column):
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
    return _TextColumn(take_bytes(&column.ends), take_bytes(&column.data), bits)


cdef int begin_column(Column* column) except -1:
    column.count = column.missing = 0
    column.data.used = column.valid.used = 0
    return begin_ends(&column.ends)


cdef inline int end_map(Buffer* ends, Column* names) except -1:
    cdef int32_t end = <int32_t>names.count
    reserve(ends, 4)
    append(ends, &end, 4)
    return 0


cdef int put_integer(Buffer* out, uint64_t magnitude, bint is_negative) except -1:
    reserve(out, DECIMAL_BYTES_MAX + 1)
    if is_negative:
        out.data[out.used] = 0x2D
        out.used += 1
    out.used += put_decimal(out.data + out.used, magnitude)
    return 0


cdef inline int put_signed(Buffer* out, int64_t number) except -1:
    if number < 0:
        return put_integer(out, <uint64_t>0 - <uint64_t>number, True)
    return put_integer(out, <uint64_t>number, False)


cdef int put_quoted(Buffer* out, const uint8_t* text, Py_ssize_t size) except -1:
    """Append a JSON string; only control characters, quote and backslash are escaped."""
    cdef Py_ssize_t i, start = 0
    cdef uint8_t byte, letter
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
        letter = 0
        if byte == 0x22 or byte == 0x5C:
            letter = byte
        elif byte == 0x0A:
            letter = 0x6E
        elif byte == 0x0D:
            letter = 0x72
        elif byte == 0x09:
            letter = 0x74
        elif byte == 0x0C:
            letter = 0x66
        elif byte == 0x08:
            letter = 0x62
        if letter:
            out.data[out.used] = letter
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
    cdef char* text = PyOS_double_to_string(real, c"r", 0, Py_DTSF_ADD_DOT_0, NULL)
    cdef Py_ssize_t size = 0
    while text[size]:
        size += 1
    try:
        reserve(out, size)
        append(out, text, size)
    finally:
        PyMem_Free(text)
    return 0


cdef class ArrowColumnBuilder:
    """See the pure-Python implementation."""

    cdef object other
    cdef object pure  # builds the rows of uncommon events, one at a time
    cdef bint with_properties, with_system, json
    cdef bint busy  # `add` runs: `other` must not call the builder
    cdef Py_ssize_t bytes_max
    cdef Py_ssize_t row_count
    cdef Py_ssize_t row_capacity  # rows for which all buffers with one entry per row have room
    cdef Buffer numbers, times
    cdef Column columns[COLUMNS]
    cdef Buffer property_ends, system_ends

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
        cdef int i
        release(&self.numbers, 0)
        release(&self.times, 0)
        for i in range(COLUMNS):
            free_column(&self.columns[i])
        release(&self.property_ends, 0)
        release(&self.system_ends, 0)

    @property
    def rows(self):
        return self.row_count

    @property
    def size(self):
        cdef Py_ssize_t texts = 0, pairs
        cdef int i
        for i in range(COLUMNS):
            texts += self.columns[i].data.used
        pairs = self.columns[PROPERTY_NAMES].count + self.columns[SYSTEM_NAMES].count
        return self.row_count * ROW_BYTES + pairs * PAIR_BYTES + texts

    def add(self, bytes data not None, object bounds not None):
        """Add delivered messages; see the pure-Python implementation."""
        cdef Py_ssize_t i, count = 0
        cdef int64_t* spans
        self.check_idle()
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
        """Return all rows and remove them; see the pure-Python implementation."""
        cdef Column* columns = self.columns
        self.check_idle()
        cdef object taken = _ArrowColumns(
            self.row_count,
            take_bytes(&self.numbers),
            take_bytes(&self.times),
            take_column(&columns[BODY]),
            take_column(&columns[OFFSET]),
            take_column(&columns[PUBLISHER]),
            take_column(&columns[KEY]),
            _MapColumn(
                take_bytes(&self.property_ends),
                take_column(&columns[PROPERTY_NAMES]),
                take_column(&columns[PROPERTY_VALUES]),
            ),
            _MapColumn(
                take_bytes(&self.system_ends),
                take_column(&columns[SYSTEM_NAMES]),
                take_column(&columns[SYSTEM_VALUES]),
            ),
        )
        self.begin()
        return taken

    cdef int check_idle(self) except -1:
        if self.busy:
            raise RuntimeError("an ArrowColumnBuilder is used inside its own `other`")
        return 0

    cdef int begin(self) except -1:
        """Set all columns to no rows."""
        cdef int i
        self.row_count = self.row_capacity = 0
        self.numbers.used = self.times.used = 0
        for i in range(COLUMNS):
            begin_column(&self.columns[i])
        begin_ends(&self.property_ends)
        begin_ends(&self.system_ends)
        return 0

    cdef int reserve_rows(self) except -1:
        """Make room for many rows in all buffers with one entry per row."""
        cdef Py_ssize_t more = self.row_count // 2 + 1024
        cdef int i
        reserve(&self.numbers, 8 * more)
        reserve(&self.times, 8 * more)
        for i in range(ROW_COLUMNS):
            reserve(&self.columns[i].ends, 4 * more)
            reserve(&self.columns[i].valid, more)
        reserve(&self.property_ends, 4 * more)
        reserve(&self.system_ends, 4 * more)
        self.row_capacity = self.row_count + more
        return 0

    cdef int add_event(self, bytes data, Py_ssize_t start, Py_ssize_t end) except -1:
        """Add one row. After an error the columns are as before."""
        cdef CommonEvent event
        cdef const uint8_t* d = <const uint8_t*>PyBytes_AS_STRING(data)
        cdef Mark marks[COLUMNS]
        cdef Py_ssize_t rows = self.row_count
        cdef bint is_added = False
        cdef int i
        for i in range(COLUMNS):
            marks[i] = mark_column(&self.columns[i])
        try:
            if start <= end and find_common_event(d, start, end, &event):
                self.put_event(d, &event)
                is_added = self.fits()
            if not is_added:
                self.reset(rows, marks)
                self.put_uncommon_event(data, start, end)
                if not self.fits():
                    raise KernelError(
                        f"a column would hold more than {self.bytes_max} bytes or texts: "
                        "take it before"
                    )
        except BaseException:
            self.reset(rows, marks)
            raise
        return 0

    cdef void reset(self, Py_ssize_t rows, const Mark* marks) noexcept:
        """Remove what was added after the marks were set."""
        cdef int i
        self.row_count = rows
        self.numbers.used = self.times.used = 8 * rows
        self.property_ends.used = self.system_ends.used = 4 * rows + 4
        for i in range(COLUMNS):
            reset_column(&self.columns[i], marks[i])

    cdef bint fits(self) noexcept:
        """Whether no column is too large. Checked after each row: an event has less than 2**32
        bytes, so the sizes cannot overflow."""
        cdef Py_ssize_t largest = self.row_count
        cdef int i
        for i in range(COLUMNS):
            largest = max(largest, self.columns[i].data.used, self.columns[i].count)
        return largest <= self.bytes_max

    cdef int begin_row(self, int64_t number, int64_t microseconds) except -1:
        """Begin a row; there is room for its entries in all buffers with one entry per row."""
        if self.row_count >= self.row_capacity:
            self.reserve_rows()
        (<int64_t*>(self.numbers.data + self.numbers.used))[0] = number
        (<int64_t*>(self.times.data + self.times.used))[0] = microseconds
        self.numbers.used += 8
        self.times.used += 8
        self.row_count += 1
        return 0

    cdef int put_event(self, const uint8_t* d, CommonEvent* event) except -1:
        cdef Column* columns = self.columns
        cdef int64_t time = event.enqueued_ms
        if time > US_MAX // 1000:
            time = US_MAX
        elif time < -(US_MAX // 1000):
            time = -US_MAX - 1
        else:
            time *= 1000
        self.begin_row(event.sequence_number, time)
        put_text(&columns[BODY], d + event.body, event.body_size)
        put_text(&columns[OFFSET], d + event.offset, event.offset_size)
        if event.publisher < 0:
            put_end(&columns[PUBLISHER], False)
        else:
            put_text(&columns[PUBLISHER], d + event.publisher, event.publisher_size)
        if event.key < 0:
            put_end(&columns[KEY], False)
        else:
            put_text(&columns[KEY], d + event.key, event.key_size)
        if self.with_properties and event.property_count:
            self.put_pairs(&columns[PROPERTY_NAMES], d, event.properties, event.property_count)
        end_map(&self.property_ends, &columns[PROPERTY_NAMES])
        if self.with_system:
            if event.annotation_count:
                self.put_pairs(&columns[SYSTEM_NAMES], d, event.annotations, event.annotation_count)
            if event.fields_set:
                self.put_fields(d, event)
        return end_map(&self.system_ends, &columns[SYSTEM_NAMES])

    cdef int put_pairs(
        self, Column* names, const uint8_t* d, Py_ssize_t p, Py_ssize_t count
    ) except -1:
        """Add the pairs at p to `names` and to the column of values, which is the next one."""
        cdef Py_ssize_t name
        while count:
            name = content_start(d, p)
            p = variable_end(d, p, CHECKED)
            add_text(names, d + name, p - name, True)
            p = self.put_value(names + 1, d, p)
            count -= 1
        return 0

    cdef int put_fields(self, const uint8_t* d, CommonEvent* event) except -1:
        cdef Py_ssize_t i, p = event.fields
        cdef bytes name
        for i in range(event.field_count):
            if d[p] == 0x40:
                p += 1
                continue
            name = <bytes>FIELD_NAMES[i]
            add_text(
                &self.columns[SYSTEM_NAMES], PyBytes_AS_STRING(name), PyBytes_GET_SIZE(name), True
            )
            p = self.put_value(&self.columns[SYSTEM_VALUES], d, p)
        return 0

    cdef Py_ssize_t put_value(self, Column* column, const uint8_t* d, Py_ssize_t p) except -1:
        """Add the text of the value at p; return the value's end."""
        cdef uint8_t code = d[p]
        cdef Buffer* out = &column.data
        cdef Py_ssize_t after, text
        cdef bint is_valid = True
        if is_text(code):
            text = content_start(d, p)
            after = variable_end(d, p, CHECKED)
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
            after = simple_end(d, p, CHECKED)
            if not put_number(out, d, p):
                self.put_other(out, d + p, after - p)
        end_text(column, is_valid)
        return after

    cdef int put_other(self, Buffer* out, const uint8_t* value, Py_ssize_t size) except -1:
        cdef object text = self.other(PyBytes_FromStringAndSize(<const char*>value, size))
        cdef Py_ssize_t length
        cdef const char* encoded
        if not isinstance(text, str):
            raise TypeError(f"`other` gave {type(text).__name__}, no str")
        encoded = PyUnicode_AsUTF8AndSize(text, &length)
        reserve(out, length)
        append(out, encoded, length)
        return 0

    cdef int put_uncommon_event(self, bytes data, Py_ssize_t start, Py_ssize_t end) except -1:
        """Copy the row that the pure-Python implementation builds, or raise its error."""
        cdef Column* columns = self.columns
        cdef object row
        self.pure.take()  # remove what an error left
        self.pure.add(data, [start, end])
        row = self.pure.take()
        self.begin_row(
            int.from_bytes(row.sequence_numbers, "little", signed=True),
            int.from_bytes(row.enqueued_us, "little", signed=True),
        )
        copy_texts(&columns[BODY], row.body)
        copy_texts(&columns[OFFSET], row.offset)
        copy_texts(&columns[PUBLISHER], row.publisher)
        copy_texts(&columns[KEY], row.partition_key)
        copy_texts(&columns[PROPERTY_NAMES], row.properties.names)
        copy_texts(&columns[PROPERTY_VALUES], row.properties.values)
        end_map(&self.property_ends, &columns[PROPERTY_NAMES])
        copy_texts(&columns[SYSTEM_NAMES], row.system.names)
        copy_texts(&columns[SYSTEM_VALUES], row.system.values)
        return end_map(&self.system_ends, &columns[SYSTEM_NAMES])


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
    """Append the texts of a column that the pure-Python implementation built."""
    cdef bytes ends = texts.ends, data = texts.data, valid = texts.valid
    cdef Py_ssize_t i, count = PyBytes_GET_SIZE(ends) // 4 - 1
    cdef const int32_t* positions = <const int32_t*>PyBytes_AS_STRING(ends)
    cdef bint is_valid
    for i in range(count):
        is_valid = True
        if valid is not None:
            is_valid = (PyBytes_AS_STRING(valid)[i >> 3] >> (i & 7)) & 1
        add_text(
            column,
            PyBytes_AS_STRING(data) + positions[i],
            positions[i + 1] - positions[i],
            is_valid,
        )
    return 0
