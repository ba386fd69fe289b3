# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""`ReceiveBuffer`, compiled: the socket writes into the memory of the bytes that are taken."""

from cpython.buffer cimport PyBuffer_FillInfo
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.string cimport memcpy

cdef extern from "Python.h":
    int _PyBytes_Resize(PyObject** text, Py_ssize_t size) except -1

# A read that fills less than 1 / WELL_FILLED of the memory is copied, and the next read uses the
# memory again: otherwise each small read would cost an allocation of the largest size.
cdef enum:
    WELL_FILLED = 4


cdef class ReceiveBuffer:
    """See the pure-Python implementation."""

    cdef Py_ssize_t size, kept, room_size
    cdef PyObject* held  # bytes object that no Python code has seen

    def __cinit__(self, Py_ssize_t size):
        if size < 1:
            raise ValueError(f"an intake of {size} bytes: it has at least one")
        self.size = size
        self.kept = self.room_size = 0
        self.held = NULL

    def __dealloc__(self):
        self.free_memory()

    cdef void free_memory(self) noexcept:
        if self.held != NULL:
            Py_DECREF(<object>self.held)
        self.held = NULL
        self.room_size = 0

    def room(self, bytes front not None):
        """A view for the next read; see the pure-Python implementation."""
        cdef Py_ssize_t kept = PyBytes_GET_SIZE(front)
        cdef bytes fresh
        if self.room_size < kept + self.size:
            fresh = PyBytes_FromStringAndSize(NULL, kept + self.size)
            self.free_memory()
            Py_INCREF(fresh)
            self.held = <PyObject*>fresh
            self.room_size = kept + self.size
        memcpy(PyBytes_AS_STRING(<object>self.held), PyBytes_AS_STRING(front), kept)
        self.kept = kept
        return memoryview(self)

    def __getbuffer__(self, Py_buffer* view, int flags):
        if self.held == NULL:
            raise BufferError("an intake without room")
        cdef void* start = PyBytes_AS_STRING(<object>self.held) + self.kept
        PyBuffer_FillInfo(view, self, start, self.size, 0, flags)

    def take(self, Py_ssize_t count):
        """The front and the bytes read; see the pure-Python implementation."""
        cdef Py_ssize_t size = self.kept + count
        cdef PyObject* held = self.held
        cdef bytes taken
        if count < 0 or count > self.size:
            raise ValueError(f"{count} bytes of an intake of {self.size}")
        self.kept = 0
        if held == NULL:
            return b""
        if size < self.room_size // WELL_FILLED:
            return PyBytes_FromStringAndSize(PyBytes_AS_STRING(<object>held), size)
        self.held = NULL
        self.room_size = 0
        _PyBytes_Resize(&held, size)
        taken = <bytes>held
        Py_DECREF(taken)  # the reference of this object
        return taken
