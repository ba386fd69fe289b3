# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""`frame_events` and `frame_run`, compiled.

A stored event that fits into one frame is framed here, into one scratch buffer for all calls. The
pure-Python implementation frames every other event, after the scratch buffer has been flushed. No
other Python code runs between two events (the attributes of StoredEvents must be plain ones), so
with the GIL held no two calls use the buffer at the same time.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE

from penstock.kernels._message cimport (
    DECIMAL_BYTES_MAX, ENQUEUED_BYTES, EPOCH_AND_SEQUENCE_BYTES, HEADER, MESSAGE_ANNOTATIONS,
    OFFSET_BYTES, data_section_end, enqueued_name, epoch_and_sequence, int64_t, malloc, memcpy,
    offset_name, put32, put64, put_decimal, put_section_code, uint8_t, uint32_t, uint64_t,
)

from penstock.kernels._pure import transfer_frames as _pure

_FramedDeliveries = _pure.FramedDeliveries

cdef enum:
    SCRATCH_BYTES = 1 << 20
    HEAD_BYTES_MAX = 32
    AFTER_ID_BYTES = 10
    # The service's four annotations without the digits of the offset.
    SERVICE_BYTES = EPOCH_AND_SEQUENCE_BYTES + 8 + OFFSET_BYTES + 1 + ENQUEUED_BYTES + 8
    OWN_BYTES_MAX = 0xFF - (SERVICE_BYTES + 1) - DECIMAL_BYTES_MAX

cdef uint8_t* scratch = <uint8_t*>malloc(SCRATCH_BYTES)
if scratch == NULL:
    raise MemoryError("the kernels' scratch buffer")


cdef struct Link:
    # What all frames of one call have in common.
    uint8_t head[HEAD_BYTES_MAX]  # from the frame's doff to the delivery-id's constructor
    Py_ssize_t head_size
    uint32_t channel, handle
    const uint8_t* runtime  # delivery-annotations section of the runtime metrics
    Py_ssize_t runtime_size
    Py_ssize_t frame_bytes_max
    Py_ssize_t frames_max, bytes_max  # of the whole run


cdef struct Run:
    # What has been framed, and the next event.
    Py_ssize_t used  # bytes of the scratch buffer
    Py_ssize_t size, events, frames
    Py_ssize_t position
    uint32_t delivery_id
    int64_t sequence


cdef struct StoredPart:
    Py_ssize_t start, stop  # of what is copied from the stored message
    Py_ssize_t own_size  # of the sender's annotations, which it begins with
    uint8_t own_count


cdef void open_link(
    Link* link,
    uint32_t channel,
    uint32_t handle,
    bytes runtime,
    Py_ssize_t frame_bytes_max,
    Py_ssize_t frames_max,
    Py_ssize_t bytes_max,
) noexcept:
    cdef uint8_t* head = link.head
    cdef Py_ssize_t size
    head[0] = 2
    head[1] = 0
    head[2] = (channel >> 8) & 0xFF
    head[3] = channel & 0xFF
    put_section_code(head + 4, 0x14)
    head[7] = 0xC0
    head[9] = 11
    if handle == 0:
        head[10] = 0x43
        size = 11
    elif handle <= 0xFF:
        head[10] = 0x52
        head[11] = <uint8_t>handle
        size = 12
    else:
        head[10] = 0x70
        put32(head + 11, handle)
        size = 15
    head[8] = <uint8_t>(1 + (size - 10) + 5 + AFTER_ID_BYTES)
    head[size] = 0x70
    link.head_size = size + 1
    link.channel, link.handle = channel, handle
    link.runtime = <const uint8_t*>PyBytes_AS_STRING(runtime)
    link.runtime_size = PyBytes_GET_SIZE(runtime)
    link.frame_bytes_max, link.frames_max = frame_bytes_max, frames_max
    link.bytes_max = bytes_max


cdef bint find_stored_part(
    const uint8_t* d, Py_ssize_t p, Py_ssize_t end, StoredPart* part
) noexcept nogil:
    """Find what is copied of the event at p; false if it is not a common one, or damaged."""
    cdef Py_ssize_t m, stop
    part.own_size = 0
    part.own_count = 0
    stop = data_section_end(d, p, end, &m)
    if stop < 0 or stop - m < 4 or d[m] or d[m + 1] != 0x53:
        return False
    part.stop = stop
    if d[m + 2] == HEADER:
        if d[m + 3] == 0x45:
            m += 4
        elif d[m + 3] == 0xC0 and stop - m >= 5:
            m += 5 + d[m + 4]
        else:
            return False
        part.start = m
        if m == stop:
            return True
        if stop - m < 4 or d[m] or d[m + 1] != 0x53:
            return False
    part.start = m
    if d[m + 2] > MESSAGE_ANNOTATIONS:
        return True
    if d[m + 2] != MESSAGE_ANNOTATIONS or d[m + 3] != 0xC1 or stop - m < 6 or d[m + 4] == 0:
        return False
    part.start = m + 6
    part.own_size = d[m + 4] - 1
    part.own_count = d[m + 5]
    if part.own_size >= OWN_BYTES_MAX or part.own_count > 0xFF - 8:
        return False
    return m + 6 + part.own_size <= stop


cdef inline uint8_t* put_bytes(uint8_t* out, const void* data, Py_ssize_t size) noexcept nogil:
    memcpy(out, data, size)
    return out + size


cdef void put_frame(
    uint8_t* out,
    Py_ssize_t frame_size,
    const Link* link,
    const Run* run,
    const StoredPart* part,
    const uint8_t* d,
    const uint8_t* offset,
    Py_ssize_t offset_size,
    int64_t enqueued_ms,
) noexcept nogil:
    """Write one transfer frame, as `_pure/transfer_frames.py` draws it."""
    put32(out, <uint32_t>frame_size)
    out = put_bytes(out + 4, link.head, link.head_size)
    put32(out, run.delivery_id)
    out = put_bytes(
        out + 4, <const char*>b"\xa0\x00\x43\x41\x42\x40\x40\x40\x40\x41", AFTER_ID_BYTES
    )
    out = put_bytes(out, link.runtime, link.runtime_size)
    out = put_section_code(out, MESSAGE_ANNOTATIONS)
    out[0] = 0xC1
    out[1] = <uint8_t>(part.own_size + offset_size + SERVICE_BYTES + 1)
    out[2] = <uint8_t>(part.own_count + 8)
    out = put_bytes(out + 3, epoch_and_sequence(), EPOCH_AND_SEQUENCE_BYTES)
    put64(out, <uint64_t>run.sequence)
    out = put_bytes(out + 8, offset_name(), OFFSET_BYTES)
    out[0] = <uint8_t>offset_size
    out = put_bytes(out + 1, offset, offset_size)
    out = put_bytes(out, enqueued_name(), ENQUEUED_BYTES)
    put64(out, <uint64_t>enqueued_ms)
    memcpy(out + 8, d + part.start, part.stop - part.start)


cdef int flush_scratch(Run* run, list parts) except -1:
    if run.used:
        parts.append(PyBytes_FromStringAndSize(<char*>scratch, run.used))
        run.used = 0
    return 0


cdef int frame_batch(
    Run* run,
    Link* link,
    list parts,
    bytes sections,
    Py_ssize_t events_max,
    int64_t base_offset,
    int64_t enqueued_ms,
    bytes runtime,
) except -1:
    """Add events of one batch to the run, whose position is in bounds."""
    cdef const uint8_t* d = <const uint8_t*>PyBytes_AS_STRING(sections)
    cdef Py_ssize_t end = PyBytes_GET_SIZE(sections), frame_size, digits
    cdef Py_ssize_t fixed_size = 4 + link.head_size + 4 + AFTER_ID_BYTES + link.runtime_size + 6
    cdef StoredPart part
    cdef uint8_t offset[DECIMAL_BYTES_MAX]
    cdef object framed
    fixed_size += SERVICE_BYTES
    while (
        run.position < end
        and run.events < events_max
        and (run.size < link.bytes_max or not run.events)
    ):
        frame_size = SCRATCH_BYTES + 1
        if find_stored_part(d, run.position, end, &part):
            digits = put_decimal(offset, <uint64_t>(base_offset + run.position))
            frame_size = fixed_size + digits + (part.stop - part.start)
        if frame_size > link.frame_bytes_max or frame_size > SCRATCH_BYTES:
            flush_scratch(run, parts)
            framed = _pure.frame_events(
                sections, run.position, events_max=1, frames_max=link.frames_max - run.frames,
                bytes_max=1, channel=link.channel, handle=link.handle,
                delivery_id=run.delivery_id, frame_bytes_max=link.frame_bytes_max,
                sequence=run.sequence, base_offset=base_offset, enqueued_ms=enqueued_ms,
                runtime=runtime,
            )
            if framed.events == 0:
                break
            parts.append(framed.data)
            run.size += PyBytes_GET_SIZE(framed.data)
            run.frames += framed.frames
            run.position = framed.position
        else:
            if run.frames >= link.frames_max:
                break
            if run.used + frame_size > SCRATCH_BYTES:
                flush_scratch(run, parts)
            put_frame(
                scratch + run.used, frame_size, link, run, &part, d, offset, digits, enqueued_ms
            )
            run.used += frame_size
            run.size += frame_size
            run.frames += 1
            run.position = part.stop
        run.events += 1
        run.sequence += 1
        run.delivery_id += 1  # delivery ids wrap at 2**32
    return 0


cdef void begin_run(
    Run* run, Py_ssize_t position, uint32_t delivery_id, int64_t sequence
) noexcept:
    run.used = run.size = run.events = run.frames = 0
    run.position, run.delivery_id, run.sequence = position, delivery_id, sequence


cdef object finish_run(Run* run, list parts):
    if not parts:
        data = PyBytes_FromStringAndSize(<char*>scratch, run.used)
    else:
        flush_scratch(run, parts)
        data = b"".join(parts)
    return _FramedDeliveries(data, run.events, run.frames, run.position)


cdef inline bint is_in_bounds(Py_ssize_t position, Py_ssize_t end, int64_t base_offset) noexcept:
    return 0 <= position <= end and 0 <= base_offset <= <int64_t>1 << 62


def frame_events(
    bytes sections not None,
    Py_ssize_t position,
    *,
    Py_ssize_t events_max,
    Py_ssize_t frames_max,
    Py_ssize_t bytes_max,
    uint32_t channel,
    uint32_t handle,
    uint32_t delivery_id,
    Py_ssize_t frame_bytes_max,
    int64_t sequence,
    int64_t base_offset,
    int64_t enqueued_ms,
    bytes runtime not None,
):
    """Frame events as settled transfers, one delivery each; see the pure-Python implementation."""
    cdef list parts = []
    cdef Run run
    cdef Link link
    if not is_in_bounds(position, PyBytes_GET_SIZE(sections), base_offset):
        return _pure.frame_events(
            sections, position, events_max=events_max, frames_max=frames_max,
            bytes_max=bytes_max, channel=channel, handle=handle, delivery_id=delivery_id,
            frame_bytes_max=frame_bytes_max, sequence=sequence, base_offset=base_offset,
            enqueued_ms=enqueued_ms, runtime=runtime,
        )
    open_link(&link, channel, handle, runtime, frame_bytes_max, frames_max, bytes_max)
    begin_run(&run, position, delivery_id, sequence)
    frame_batch(&run, &link, parts, sections, events_max, base_offset, enqueued_ms, runtime)
    return finish_run(&run, parts)


def frame_run(
    list batches not None,
    Py_ssize_t position,
    *,
    Py_ssize_t events_max,
    Py_ssize_t frames_max,
    Py_ssize_t bytes_max,
    uint32_t channel,
    uint32_t handle,
    uint32_t delivery_id,
    Py_ssize_t frame_bytes_max,
    int64_t sequence,
    bytes runtime not None,
):
    """Frame events of several stored batches; see the pure-Python implementation."""
    cdef list parts = []
    cdef Run run
    cdef Link link
    cdef bytes sections
    cdef int64_t base_offset, left
    cdef Py_ssize_t events_before
    open_link(&link, channel, handle, runtime, frame_bytes_max, frames_max, bytes_max)
    begin_run(&run, position, delivery_id, sequence)
    for batch in batches:
        if run.events:
            if run.events >= events_max or run.frames >= frames_max or run.size >= bytes_max:
                break
            run.position, run.sequence = 0, batch.first_sequence
        sections, base_offset = batch.sections, batch.base_offset
        if not is_in_bounds(run.position, PyBytes_GET_SIZE(sections), base_offset):
            return _pure.frame_run(
                batches, position, events_max=events_max, frames_max=frames_max,
                bytes_max=bytes_max, channel=channel, handle=handle, delivery_id=delivery_id,
                frame_bytes_max=frame_bytes_max, sequence=sequence, runtime=runtime,
            )
        left = batch.first_sequence + batch.count - run.sequence
        events_before = run.events
        frame_batch(
            &run, &link, parts, sections, min(events_max, events_before + left), base_offset,
            batch.enqueued_ms, runtime,
        )
        if run.events - events_before < left:
            break
    return finish_run(&run, parts)
