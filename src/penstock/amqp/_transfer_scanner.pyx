# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Compiled `scan_transfers`. It returns the same runs as the pure-Python implementation in
`transfer_run.py`, which is its specification. It never raises, and compares every length with the
bytes present before it uses it: bounds checks are off."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport uint8_t, uint32_t

from penstock.amqp.transfer_run import TransferRun as _TransferRun

cdef struct Transfer:
    uint32_t channel
    uint32_t handle
    uint32_t delivery_id
    uint32_t message_format
    bint settled
    Py_ssize_t payload
    Py_ssize_t stop


cdef inline uint32_t be32(const uint8_t* p) noexcept nogil:
    return (<uint32_t>p[0] << 24) | (<uint32_t>p[1] << 16) | (<uint32_t>p[2] << 8) | p[3]


cdef inline Py_ssize_t read_uint(
    const uint8_t* d, Py_ssize_t p, Py_ssize_t stop, uint32_t* value
) noexcept nogil:
    if p >= stop:
        return -1
    if d[p] == 0x43:
        value[0] = 0
        return p + 1
    if d[p] == 0x52 and p + 2 <= stop:
        value[0] = d[p + 1]
        return p + 2
    if d[p] == 0x70 and p + 5 <= stop:
        value[0] = be32(d + p + 1)
        return p + 5
    return -1


cdef inline Py_ssize_t after_tag(
    const uint8_t* d, Py_ssize_t p, Py_ssize_t stop
) noexcept nogil:
    cdef Py_ssize_t length
    if p + 2 <= stop and d[p] == 0xA0:
        length = d[p + 1]
        p += 2
    elif p + 5 <= stop and d[p] == 0xB0:
        length = be32(d + p + 1)
        p += 5
    else:
        return -1
    if length > 32 or p + length > stop:
        return -1
    return p + length


cdef inline Py_ssize_t read_flag(
    const uint8_t* d, Py_ssize_t p, Py_ssize_t stop, int* flag
) noexcept nogil:
    """flag: -1 null, 0 false, 1 true."""
    if p >= stop:
        return -1
    if d[p] == 0x40:
        flag[0] = -1
    elif d[p] == 0x41:
        flag[0] = 1
    elif d[p] == 0x42:
        flag[0] = 0
    elif d[p] == 0x56 and p + 2 <= stop and d[p + 1] <= 1:
        flag[0] = d[p + 1]
        return p + 2
    else:
        return -1
    return p + 1


cdef bint plain_transfer(
    const uint8_t* d, Py_ssize_t start, Py_ssize_t end, Py_ssize_t frame_bytes_max,
    Transfer* transfer,
) noexcept nogil:
    cdef Py_ssize_t size, stop, p, payload
    cdef uint32_t count, index
    cdef int flag
    if end - start < 12:
        return False
    size = be32(d + start)
    if d[start + 4] != 2 or d[start + 5] or size > frame_bytes_max or size > end - start:
        return False
    if size < 12 or d[start + 8] or d[start + 9] != 0x53 or d[start + 10] != 0x14:
        return False
    stop = start + size
    p = start + 11
    if d[p] == 0xC0 and p + 3 <= stop:
        payload = p + 2 + d[p + 1]
        count = d[p + 2]
        p += 3
    elif d[p] == 0xD0 and p + 9 <= stop:
        payload = p + 5 + <Py_ssize_t>be32(d + p + 1)
        count = be32(d + p + 5)
        p += 9
    else:
        return False
    if payload > stop or count < 3 or count > 11:
        return False
    transfer.channel = (<uint32_t>d[start + 6] << 8) | d[start + 7]
    p = read_uint(d, p, payload, &transfer.handle)
    if p < 0:
        return False
    p = read_uint(d, p, payload, &transfer.delivery_id)
    if p < 0:
        return False
    p = after_tag(d, p, payload)
    if p < 0:
        return False
    transfer.message_format = 0
    transfer.settled = False
    if count > 3:
        if p < payload and d[p] == 0x40:
            p += 1
        else:
            p = read_uint(d, p, payload, &transfer.message_format)
            if p < 0:
                return False
    for index in range(4, count):
        p = read_flag(d, p, payload, &flag)
        if p < 0:
            return False
        if index == 4:
            transfer.settled = flag == 1
        elif index == 6 or index == 7:
            if flag != -1:
                return False
        elif index != 10 and flag == 1:
            return False
    if p != payload:
        return False
    transfer.payload = payload
    transfer.stop = stop
    return True


def scan_transfers(
    bytes buffer not None,
    Py_ssize_t start,
    Py_ssize_t end,
    *,
    Py_ssize_t frame_bytes_max,
    Py_ssize_t count_max=4096,
):
    """Take the run of plain transfers that starts at `start`, or None; see `transfer_run.py`."""
    cdef const uint8_t* d = <const uint8_t*>PyBytes_AS_STRING(buffer)
    cdef Transfer first, frame
    cdef Py_ssize_t count = 0, position = start
    cdef list bounds = []
    if start < 0 or start > end or end > PyBytes_GET_SIZE(buffer) or count_max < 1:
        return None
    if not plain_transfer(d, start, end, frame_bytes_max, &first):
        return None
    frame = first
    while True:
        bounds.append(frame.payload)
        bounds.append(frame.stop)
        count += 1
        position = frame.stop
        if count >= count_max or not plain_transfer(d, position, end, frame_bytes_max, &frame):
            break
        if (
            frame.channel != first.channel
            or frame.handle != first.handle
            or frame.settled != first.settled
            or frame.message_format != first.message_format
            or frame.delivery_id != <uint32_t>(first.delivery_id + <uint32_t>count)
        ):
            break
    return _TransferRun(
        first.channel, first.handle, first.delivery_id, count, bool(first.settled),
        first.message_format, bounds, position,
    )
