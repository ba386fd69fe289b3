# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""`append_event` and `append_bodies`, compiled. Sizes are measured first, so `out` grows once."""

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE, PyByteArray_Resize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_Next, PyDict_Size
from cpython.float cimport PyFloat_AS_DOUBLE
from cpython.long cimport PyLong_AsLongLongAndOverflow
from cpython.object cimport PyObject
from libc.stdint cimport int32_t

from penstock.kernels._message cimport (
    APPLICATION_PROPERTIES, DATA, int64_t, memcpy, put32, put64, put_data_head,
    put_section_code, put_variable, uint8_t, uint32_t, uint64_t, variable_size,
)

from penstock.kernels._pure import producer_batch as _pure

cdef extern from "Python.h":
    const char* PyUnicode_AsUTF8AndSize(object text, Py_ssize_t* size) except NULL

cdef Py_ssize_t EVENT_BYTES_MAX = _pure.EVENT_BYTES_MAX


cdef Py_ssize_t value_size(object value) except -2:
    """Bytes that `put_value` writes; -1 for a value of another type."""
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
    """Write a value that `value_size` has measured; return its end."""
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
    """Bytes of all keys and values; -1 if one has another type or they are too large."""
    cdef PyObject* key
    cdef PyObject* value
    cdef Py_ssize_t cursor = 0, total = 0, size
    while PyDict_Next(properties, &cursor, &key, &value):
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
    cdef Py_ssize_t cursor = 0
    while PyDict_Next(properties, &cursor, &key, &value):
        out = put_value(out, <object>key)
        out = put_value(out, <object>value)
    return out


cdef inline uint8_t* put_bytes(uint8_t* out, bytes data) noexcept:
    memcpy(out, PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))
    return out + PyBytes_GET_SIZE(data)


cdef inline uint8_t* put_map_head(uint8_t* out, Py_ssize_t size, Py_ssize_t count) noexcept:
    """Write a map up to its first key; `size` is that of its pairs, `count` of keys and values."""
    if size < 255 and count < 256:
        out[0] = 0xC1
        out[1] = <uint8_t>(size + 1)
        out[2] = <uint8_t>count
        return out + 3
    out[0] = 0xD1
    put32(out + 1, <uint32_t>(size + 4))
    put32(out + 5, <uint32_t>count)
    return out + 9


def append_event(
    bytearray out not None,
    bytes annotations not None,
    bytes fields not None,
    dict properties,
    bytes body not None,
):
    """Append one event to a batch as a data section; see the pure-Python implementation."""
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
    p = put_data_head(p, message)
    p = put_bytes(put_bytes(p, annotations), fields)
    if pairs >= 0:
        p = put_map_head(put_section_code(p, APPLICATION_PROPERTIES), pairs, count)
        p = put_pairs(p, properties)
    put_variable(
        put_section_code(p, DATA), 0xA0, PyBytes_AS_STRING(body), PyBytes_GET_SIZE(body)
    )
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
    """Append rows of a column of bodies as events; see the pure-Python implementation."""
    cdef Py_ssize_t own = PyBytes_GET_SIZE(annotations), size = data.shape[0]
    cdef Py_ssize_t before = PyByteArray_GET_SIZE(out), total = before, row, message, section
    cdef int32_t bounds[2]
    cdef const uint8_t* offsets
    cdef const uint8_t* bodies
    cdef uint8_t* p
    cdef list starts = []
    if (
        first < 0 or first > stop or stop >= ends.shape[0] // 4 or ends.shape[0] % 4
        or (number_at >= 0 and number_at > own - 4) or number < 0
    ):
        return _pure.append_bodies(  # raises the error, or accepts a negative number
            out, annotations, number_at, number, data, ends, first, stop, size_max=size_max
        )
    offsets = &ends[0]
    bodies = &data[0] if size else offsets  # of empty bodies nothing is read, but &data[0] fails
    for row in range(first, stop):
        memcpy(bounds, offsets + 4 * row, 8)
        if bounds[0] < 0 or bounds[1] < bounds[0] or bounds[1] > size:
            return _pure.append_bodies(
                out, annotations, number_at, number, data, ends, first, stop, size_max=size_max
            )
        message = own + 3 + variable_size(bounds[1] - bounds[0])
        section = 3 + variable_size(message)
        if total + section > size_max:
            break
        starts.append(total + section - message)
        total += section
    if not starts:
        return starts
    PyByteArray_Resize(out, total)
    p = <uint8_t*>PyByteArray_AS_STRING(out) + before
    for row in range(first, first + <Py_ssize_t>len(starts)):
        memcpy(bounds, offsets + 4 * row, 8)
        message = own + 3 + variable_size(bounds[1] - bounds[0])
        p = put_bytes(put_data_head(p, message), annotations)
        if number_at >= 0:
            put32(p - own + number_at, <uint32_t>((number + row - first) & 0x7FFFFFFF))
        p = put_section_code(p, DATA)
        p = put_variable(p, 0xA0, bodies + bounds[0], bounds[1] - bounds[0])
    return starts
