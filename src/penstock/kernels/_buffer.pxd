# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""A buffer that grows while a compiled kernel appends to it and becomes a bytes object uncopied."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport uint8_t
from libc.string cimport memcpy

cdef extern from "Python.h":
    int _PyBytes_Resize(PyObject** data, Py_ssize_t size) except -1


cdef struct Buffer:
    PyObject* object_  # bytes object of `capacity` bytes, not yet visible to Python code
    uint8_t* data  # its first byte
    Py_ssize_t used
    Py_ssize_t capacity
    Py_ssize_t last_used  # `used` at the last `take_bytes`: the next block is likely as large


cdef inline int reserve(Buffer* buffer, Py_ssize_t more) except -1:
    """Make room for `more` bytes. Raises MemoryError and leaves the buffer as it was."""
    if buffer.capacity - buffer.used >= more:
        return 0
    return grow(buffer, more)


cdef inline int grow(Buffer* buffer, Py_ssize_t more) except -1:
    cdef Py_ssize_t capacity = buffer.used + more
    cdef object larger
    capacity += capacity // 2 + 4096
    if capacity < buffer.last_used + buffer.last_used // 8:
        capacity = buffer.last_used + buffer.last_used // 8
    larger = PyBytes_FromStringAndSize(NULL, capacity)
    if buffer.used:
        memcpy(PyBytes_AS_STRING(larger), buffer.data, buffer.used)
    release(buffer, buffer.used)
    Py_INCREF(larger)
    buffer.object_ = <PyObject*>larger
    buffer.data = <uint8_t*>PyBytes_AS_STRING(larger)
    buffer.capacity = capacity
    return 0


cdef inline void append(Buffer* buffer, const void* data, Py_ssize_t size) noexcept nogil:
    """Append bytes for which the caller has reserved room."""
    if size:
        memcpy(buffer.data + buffer.used, data, size)
        buffer.used += size


cdef inline void release(Buffer* buffer, Py_ssize_t used) noexcept:
    """Free the memory and set `used`."""
    if buffer.object_ != NULL:
        Py_DECREF(<object>buffer.object_)
    buffer.object_ = NULL
    buffer.data = NULL
    buffer.used = used
    buffer.capacity = 0


cdef inline bytes take_bytes(Buffer* buffer):
    """Return the content without copying it and leave the buffer empty."""
    cdef PyObject* content = buffer.object_
    cdef Py_ssize_t used = buffer.used
    cdef bytes taken
    if content == NULL:
        return b""
    buffer.object_ = NULL
    buffer.last_used = used
    release(buffer, 0)
    _PyBytes_Resize(&content, used)
    taken = <bytes>content
    Py_DECREF(taken)  # the buffer's reference
    return taken
