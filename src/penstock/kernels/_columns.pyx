# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""`decode_events`, compiled.

Events whose sections have the common order are decoded here, every other event by the pure-Python
implementation. As there, only the message-annotations are checked pair by pair.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeUTF8

from penstock.kernels._message cimport (
    APPLICATION_PROPERTIES, DATA, DELIVERY_ANNOTATIONS, MESSAGE_ANNOTATIONS, PROPERTIES,
    CommonEvent, copy_bounds, data_section_end, find_annotations, free, int64_t, is_section,
    uint8_t, variable_end,
)

from penstock.kernels._pure import columns as _pure

_Columns = _pure.Columns


cdef class _Rows:
    """The columns while they grow."""

    cdef list sequence_numbers, offsets, enqueued_ms, keys, bodies, properties, system, messages
    cdef bytearray kinds

    def __cinit__(self):
        self.sequence_numbers, self.offsets, self.enqueued_ms, self.keys = [], [], [], []
        self.bodies, self.properties, self.system, self.messages = [], [], [], []
        self.kinds = bytearray()

    cdef int extend(self, object columns) except -1:
        """Append the rows of the pure-Python implementation."""
        self.sequence_numbers += columns.sequence_numbers
        self.offsets += columns.offsets
        self.enqueued_ms += columns.enqueued_ms
        self.keys += columns.partition_keys
        self.bodies += columns.bodies
        self.properties += columns.properties
        self.system += columns.system
        self.messages += columns.message_properties
        self.kinds += columns.body_kinds
        return 0

    cdef object build(self):
        return _Columns(
            self.sequence_numbers, self.offsets, self.enqueued_ms, self.keys, self.bodies,
            self.properties, self.system, self.messages, bytes(self.kinds),
        )


cdef inline bytes copy_bytes(const uint8_t* d, Py_ssize_t start, Py_ssize_t stop):
    return PyBytes_FromStringAndSize(<const char*>d + start, stop - start)


cdef inline Py_ssize_t map_end(const uint8_t* d, Py_ssize_t p, Py_ssize_t end) noexcept nogil:
    """The end of the map at p by its length; p is before end."""
    return variable_end(d, p, end) if d[p] == 0xC1 or d[p] == 0xD1 else -1


cdef inline Py_ssize_t list_end(const uint8_t* d, Py_ssize_t p, Py_ssize_t end) noexcept nogil:
    """The end of the list at p by its length; p is before end."""
    if d[p] == 0x45:
        return p + 1
    return variable_end(d, p, end) if d[p] == 0xC0 or d[p] == 0xD0 else -1


cdef bint add_common_event(bytes data, Py_ssize_t p, Py_ssize_t end, _Rows rows) except -1:
    """Append the event data[p:end]; false, and nothing appended, if its form is not common."""
    cdef const uint8_t* d = <const uint8_t*>PyBytes_AS_STRING(data)
    cdef CommonEvent event
    cdef Py_ssize_t annotations, fields = 0, fields_stop = 0, properties = 0, properties_stop = 0
    cdef Py_ssize_t annotations_stop
    event.body = end
    if is_section(d, p, end, DELIVERY_ANNOTATIONS):
        p = map_end(d, p + 3, end)
        if p < 0:
            return False
    if not is_section(d, p, end, MESSAGE_ANNOTATIONS):
        return False
    annotations = p + 3
    p = annotations_stop = find_annotations(d, annotations, end, &event)
    if p < 0:
        return False
    if is_section(d, p, end, PROPERTIES):
        fields = p + 3
        p = fields_stop = list_end(d, fields, end)
        if p < 0:
            return False
    if is_section(d, p, end, APPLICATION_PROPERTIES):
        properties = p + 3
        p = properties_stop = map_end(d, properties, end)
        if p < 0:
            return False
    if data_section_end(d, p, end, &event.body) != end:
        return False
    rows.sequence_numbers.append(event.sequence_number)
    rows.offsets.append(
        PyUnicode_DecodeUTF8(<const char*>d + event.offset, event.offset_size, NULL)
    )
    rows.enqueued_ms.append(event.enqueued_ms)
    rows.keys.append(
        None if event.key < 0
        else PyUnicode_DecodeUTF8(<const char*>d + event.key, event.key_size, NULL)
    )
    rows.bodies.append(copy_bytes(d, event.body, end))
    rows.properties.append(copy_bytes(d, properties, properties_stop))
    rows.system.append(copy_bytes(d, annotations, annotations_stop))
    rows.messages.append(copy_bytes(d, fields, fields_stop))
    rows.kinds.append(DATA)
    return True


def decode_events(bytes data not None, list bounds not None):
    """Decode delivered messages into columns; see the pure-Python implementation."""
    cdef _Rows rows = _Rows()
    cdef Py_ssize_t i, count = 0
    cdef int64_t* spans = copy_bounds(bounds, PyBytes_GET_SIZE(data), &count)
    if spans == NULL:
        return _pure.decode_events(data, bounds)  # raises the error
    try:
        for i in range(0, count, 2):
            if not add_common_event(data, spans[i], spans[i + 1], rows):
                rows.extend(_pure.decode_events(data, [spans[i], spans[i + 1]]))
    finally:
        free(spans)
    return rows.build()
