# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""`ReceiveBuffer`, compiled: the socket writes into the memory of the bytes that are taken."""

from cpython.buffer cimport PyBuffer_FillInfo
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.string cimport memcpy

cdef extern from "Python.h":
    int _PyBytes_Resize(PyObject** text, Py_ssize_t size) except -1

# A read that fills less than this part of the memory is copied out of it, and the memory stays for
# the next one: small reads would cost an allocation of the largest each.
cdef enum:
    WELL_FILLED = 4


cdef class ReceiveBuffer:
    """See the pure twin."""

    cdef Py_ssize_t size, kept, room_size
    cdef PyObject* held  # bytes that nobody else has seen

    def __cinit__(self, Py_ssize_t size):
        if size < 1:
            raise ValueError(f"an intake of {size} bytes: it has at least one")
        self.size = size
        self.kept = self.room_size = 0
        self.held = NULL

    def __dealloc__(self):
        self.let_go()

    cdef void let_go(self) noexcept:
        if self.held != NULL:
            Py_DECREF(<object>self.held)
        self.held = NULL
        self.room_size = 0

    def room(self, bytes front not None):
        """Where the next read goes; see the pure twin."""
        cdef Py_ssize_t kept = PyBytes_GET_SIZE(front)
        cdef bytes fresh
        if self.room_size < kept + self.size:
            fresh = PyBytes_FromStringAndSize(NULL, kept + self.size)
            self.let_go()
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
        """What is there now; see the pure twin."""
        cdef Py_ssize_t all_of_it = self.kept + count
        cdef PyObject* held = self.held
        cdef bytes taken
        if count < 0 or count > self.size:
            raise ValueError(f"{count} bytes of an intake of {self.size}")
        self.kept = 0
        if held == NULL:
            return b""
        if all_of_it < self.room_size // WELL_FILLED:
            return PyBytes_FromStringAndSize(PyBytes_AS_STRING(<object>held), all_of_it)
        self.held = NULL
        self.room_size = 0
        _PyBytes_Resize(&held, all_of_it)
        taken = <bytes>held
        Py_DECREF(taken)  # the reference that the intake had
        return taken
