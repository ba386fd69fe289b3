# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The checks of `_pure/values.py` and `_pure/messages.py`, compiled.

Every value of every message is checked here in C, whatever its form, so that an uncommon or hostile
message costs the event loop little more than a common one. The functions of the pure-Python
implementation build the errors, so both raise the same.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE

from penstock.kernels._message cimport (
    APPLICATION_PROPERTIES, DATA, DELIVERY_ANNOTATIONS, FIXED_WIDTH, FOOTER, HEADER,
    MESSAGE_ANNOTATIONS, PROPERTIES, SEQUENCE, VALUE, be32, be64, content_start,
    fill_field_table, free, is_ascii, is_string, is_symbol, is_utf8, malloc, memcmp, memcpy,
    put_section_code, put_variable, uint8_t, uint16_t, uint64_t,
)

from penstock.kernels._pure import messages as _pure
from penstock.kernels._pure import values as _values

_BARE = _pure.BARE
_EMPTY = _pure.EMPTY

cdef frozenset _KNOWN = _pure.KNOWN
cdef frozenset _OWNED = _pure.OWNED
cdef bytes _KEY = _pure.KEY

cdef enum:
    # The kinds of keys that a map may have.
    PRIMITIVE_KEYS = 0
    FOOTER_KEYS = 1
    PROPERTY_KEYS = 2
    DELIVERY_ANNOTATION_KEYS = 3

cdef int DEPTH_MAX = _values.DEPTH_MAX
cdef Py_ssize_t COUNT_MAX = _values.COUNT_MAX
cdef Py_ssize_t ELEMENTS_MAX = _values.ELEMENTS_MAX
cdef Py_ssize_t SEEN_ELEMENTS_MAX = _pure.SEEN_ELEMENTS_MAX

cdef uint64_t KNOWN_LENGTHS = 0  # bit n: an annotation that the service knows has n bytes
for _name in _KNOWN:
    KNOWN_LENGTHS |= <uint64_t>1 << <int>len(_name)

cdef uint16_t HEADER_FIELDS[256]
cdef uint16_t PROPERTIES_FIELDS[256]
fill_field_table(HEADER_FIELDS, _pure.HEADER_CONSTRUCTORS)
fill_field_table(PROPERTIES_FIELDS, _pure.PROPERTIES_CONSTRUCTORS)

# --- values -------------------------------------------------------------------------------------


cdef inline bint is_ulong(uint8_t code) noexcept nogil:
    return code == 0x44 or code == 0x53 or code == 0x80


cdef inline bint has_body(uint8_t code) noexcept nogil:
    """Whether a constructor exists whose values have no fixed width."""
    if code & 0xE0 == 0xA0:  # binary, string, symbol
        return code & 0x0F == 0 or code & 0x0F == 1 or code & 0x0F == 3
    if code & 0xE0 == 0xC0:  # list, map
        return code & 0x0F == 0 or code & 0x0F == 1
    return code == 0xE0 or code == 0xF0 or code == 0x00 or code == 0x56 or code == 0x73


cdef inline Py_ssize_t check_end(Py_ssize_t p, Py_ssize_t stop) except -1:
    """The elements of a list, map or array must end where its size says."""
    if p != stop:
        raise _values.overrun(p, p, stop)
    return stop


cdef Py_ssize_t check_value(
    bytes data, Py_ssize_t p, Py_ssize_t end, int depth, Py_ssize_t* budget
) except -1:
    """The end of the value at p, at most `end`."""
    cdef const uint8_t* d = <const uint8_t*>PyBytes_AS_STRING(data)
    cdef Py_ssize_t width
    if p >= end:
        raise _values.missing_value(p)
    width = FIXED_WIDTH[d[p]]
    if width == 0:
        return check_body(data, d[p], p + 1, end, depth, budget)
    if p + width > end:
        raise _values.overrun(p, p + width, end)
    return p + width


cdef Py_ssize_t check_body(
    bytes data, uint8_t code, Py_ssize_t p, Py_ssize_t end, int depth, Py_ssize_t* budget
) except -1:
    """The end of a value whose constructor `code` is not directly before p, as in an array."""
    cdef const uint8_t* d = <const uint8_t*>PyBytes_AS_STRING(data)
    if not has_body(code):
        raise _values.unknown_constructor(code, p)
    if code >= 0xE0:
        return check_array(data, code, p, end, depth, budget)
    if code >= 0xC0:
        return check_compound(data, code, p, end, depth, budget)
    if code >= 0xA0:
        return check_variable(data, code, p, end)
    if code == 0x56:
        if p >= end or d[p] > 1:
            raise _values.bad_boolean(p)
        return p + 1
    if code == 0x73:
        if p + 4 > end or be32(d + p) > 0x10FFFF or 0xD800 <= be32(d + p) <= 0xDFFF:
            raise _values.bad_character(p)
        return p + 4
    if depth > DEPTH_MAX:
        raise _values.too_deep(p)
    p = check_descriptor(data, p, end)
    return check_value(data, p, end, depth + 1, budget)


cdef Py_ssize_t check_variable(bytes data, uint8_t code, Py_ssize_t p, Py_ssize_t end) except -1:
    cdef const uint8_t* d = <const uint8_t*>PyBytes_AS_STRING(data)
    cdef Py_ssize_t head = 4 if code & 0x10 else 1, stop
    if p + head > end:
        raise _values.missing_length(p)
    stop = p + head + (<Py_ssize_t>be32(d + p) if head == 4 else d[p])
    if stop > end:
        raise _values.overrun(p, stop, end)
    p += head
    if code & 0x0F and not is_ascii(d + p, stop - p):
        if code & 0x0F == 3:
            raise _values.symbol_not_ascii(p)
        if not is_utf8(d + p, stop - p):
            _values.check_text(data, code, p, stop)  # raises, with the position
    return stop


cdef Py_ssize_t check_descriptor(bytes data, Py_ssize_t p, Py_ssize_t end) except -1:
    """The end of a descriptor, a ulong or a symbol (AMQP 1.0 section 1.2)."""
    cdef const uint8_t* d = <const uint8_t*>PyBytes_AS_STRING(data)
    cdef Py_ssize_t none = 0
    if p >= end or not (is_ulong(d[p]) or is_symbol(d[p])):
        raise _values.missing_descriptor(p)
    return check_value(data, p, end, DEPTH_MAX, &none)


cdef Py_ssize_t open_compound(
    bytes data, uint8_t code, Py_ssize_t p, Py_ssize_t end,
    Py_ssize_t* budget, Py_ssize_t* count, Py_ssize_t* stop,
) except -1:
    """The first element of a list, map or array; p is after the constructor."""
    cdef const uint8_t* d = <const uint8_t*>PyBytes_AS_STRING(data)
    cdef Py_ssize_t first = p + (8 if code & 0x10 else 2)
    if first > end:
        raise _values.missing_size(p)
    if code & 0x10:
        stop[0] = p + 4 + <Py_ssize_t>be32(d + p)
        count[0] = be32(d + p + 4)
    else:
        stop[0] = p + 1 + d[p]
        count[0] = d[p + 1]
    if stop[0] < first or stop[0] > end:
        raise _values.overrun(p, stop[0], end)
    budget[0] -= count[0]
    if count[0] > COUNT_MAX or budget[0] < 0:
        raise _values.too_many_elements(count[0], p)
    if count[0] > stop[0] - first:
        raise _values.more_elements_than_bytes(count[0], stop[0] - first, p)
    if count[0] & 1 and (code == 0xC1 or code == 0xD1):
        raise _values.odd_map(count[0], p)
    return first


cdef Py_ssize_t check_elements(
    bytes data, Py_ssize_t p, Py_ssize_t count, Py_ssize_t stop, int depth, Py_ssize_t* budget
) except -1:
    while count:
        p = check_value(data, p, stop, depth, budget)
        count -= 1
    return check_end(p, stop)


cdef Py_ssize_t check_compound(
    bytes data, uint8_t code, Py_ssize_t p, Py_ssize_t end, int depth, Py_ssize_t* budget
) except -1:
    cdef Py_ssize_t count, stop
    if depth > DEPTH_MAX:
        raise _values.too_deep(p)
    p = open_compound(data, code, p, end, budget, &count, &stop)
    if code == 0xC1 or code == 0xD1:
        return check_pairs(data, p, count, stop, depth + 1, budget, PRIMITIVE_KEYS)
    return check_elements(data, p, count, stop, depth + 1, budget)


cdef inline int check_key(int keys, uint8_t code, Py_ssize_t p) except -1:
    if keys == PRIMITIVE_KEYS:
        if code == 0x00 or code == 0x45 or code >= 0xC0:
            raise _values.compound_key(code, p)
    elif is_string(code):
        if keys == DELIVERY_ANNOTATION_KEYS:
            raise _pure.bad_map_key(code, p)
    elif keys == PROPERTY_KEYS or not (is_symbol(code) or is_ulong(code)):
        raise _pure.bad_map_key(code, p)
    return 0


cdef Py_ssize_t check_pairs(
    bytes data, Py_ssize_t p, Py_ssize_t count, Py_ssize_t stop,
    int depth, Py_ssize_t* budget, int keys,
) except -1:
    """Like `check_elements`, for a map whose keys are of the kind `keys`."""
    cdef const uint8_t* d = <const uint8_t*>PyBytes_AS_STRING(data)
    while count:
        if p < stop:
            check_key(keys, d[p], p)
        p = check_value(data, p, stop, depth, budget)
        p = check_value(data, p, stop, depth, budget)
        count -= 2
    return check_end(p, stop)


cdef Py_ssize_t check_array(
    bytes data, uint8_t code, Py_ssize_t p, Py_ssize_t end, int depth, Py_ssize_t* budget
) except -1:
    cdef const uint8_t* d = <const uint8_t*>PyBytes_AS_STRING(data)
    cdef Py_ssize_t count, stop, width
    if depth > DEPTH_MAX:
        raise _values.too_deep(p)
    p = open_compound(data, code, p, end, budget, &count, &stop)
    if p == stop and count == 0:
        return stop  # .NET omits the constructor of an empty array
    if p < stop and d[p] == 0x00:
        p = check_descriptor(data, p + 1, stop)
    if p >= stop or d[p] == 0x00:
        raise _values.missing_element_constructor(p)
    code = d[p]
    p += 1
    width = FIXED_WIDTH[code]
    if width == 0 and not has_body(code):
        raise _values.unknown_constructor(code, p)
    if width:
        p += count * (width - 1)
    elif code == 0x56:
        p += count  # any octets: azure-eventhub writes 0x41 and 0x42 inside an array
    else:
        while count:
            p = check_body(data, code, p, stop, depth + 1, budget)
            count -= 1
    return check_end(p, stop)


# --- sections -----------------------------------------------------------------------------------


cdef Py_ssize_t open_map(
    bytes data, Py_ssize_t p, Py_ssize_t end,
    Py_ssize_t* budget, Py_ssize_t* count, Py_ssize_t* stop,
) except -1:
    cdef const uint8_t* d = <const uint8_t*>PyBytes_AS_STRING(data)
    if p >= end or (d[p] != 0xC1 and d[p] != 0xD1):
        raise _pure.missing_map(p)
    return open_compound(data, d[p], p + 1, end, budget, count, stop)


cdef Py_ssize_t open_list(
    bytes data, Py_ssize_t p, Py_ssize_t end,
    Py_ssize_t* budget, Py_ssize_t* count, Py_ssize_t* stop,
) except -1:
    cdef const uint8_t* d = <const uint8_t*>PyBytes_AS_STRING(data)
    if p < end and d[p] == 0x45:
        count[0] = 0
        stop[0] = p + 1
        return p + 1
    if p >= end or (d[p] != 0xC0 and d[p] != 0xD0):
        raise _pure.missing_list(p)
    return open_compound(data, d[p], p + 1, end, budget, count, stop)


cdef Py_ssize_t check_keyed_map(
    bytes data, Py_ssize_t p, Py_ssize_t end, Py_ssize_t* budget, int keys
) except -1:
    cdef Py_ssize_t count, stop
    p = open_map(data, p, end, budget, &count, &stop)
    return check_pairs(data, p, count, stop, 2, budget, keys)


cdef Py_ssize_t check_fields(
    bytes data, Py_ssize_t p, Py_ssize_t end,
    Py_ssize_t* budget, int section, const uint16_t* allowed, int fields_max,
) except -1:
    cdef const uint8_t* d = <const uint8_t*>PyBytes_AS_STRING(data)
    cdef Py_ssize_t count, stop, after, start = p
    cdef int i
    p = open_list(data, p, end, budget, &count, &stop)
    if count > fields_max:
        raise _pure.too_many_fields(count, section, start)
    for i in range(<int>count):
        after = check_value(data, p, stop, 2, budget)
        if not allowed[d[p]] >> i & 1:
            raise _pure.wrong_field_type(section, i, d[p], p)
        p = after
    return check_end(p, stop)


cdef Py_ssize_t check_section_value(
    bytes data, int code, Py_ssize_t p, Py_ssize_t end, Py_ssize_t* budget
) except -1:
    """The end of the value of any section except message-annotations."""
    cdef const uint8_t* d = <const uint8_t*>PyBytes_AS_STRING(data)
    cdef Py_ssize_t count, stop
    if code == HEADER:
        return check_fields(data, p, end, budget, code, HEADER_FIELDS, 5)
    if code == PROPERTIES:
        return check_fields(data, p, end, budget, code, PROPERTIES_FIELDS, 13)
    if code == APPLICATION_PROPERTIES:
        return check_keyed_map(data, p, end, budget, PROPERTY_KEYS)
    if code == VALUE:
        return check_value(data, p, end, 1, budget)
    if code == FOOTER:
        return check_keyed_map(data, p, end, budget, FOOTER_KEYS)
    if code == DELIVERY_ANNOTATIONS:
        return check_keyed_map(data, p, end, budget, DELIVERY_ANNOTATION_KEYS)
    budget[0] -= 1
    if budget[0] < 0:
        raise _pure.too_many_sections(p)
    if code == SEQUENCE:
        p = open_list(data, p, end, budget, &count, &stop)
        return check_elements(data, p, count, stop, 2, budget)
    if p >= end or (d[p] != 0xA0 and d[p] != 0xB0 and d[p] != 0x40):
        raise _pure.missing_binary(p)
    return check_value(data, p, end, 1, budget)


cdef inline bytes copy_known_name(const uint8_t* name, Py_ssize_t size):
    """The annotation's name if it means something to the service, else None."""
    cdef bytes text
    if not 0 < size < 64 or not KNOWN_LENGTHS >> size & 1:
        return None
    text = PyBytes_FromStringAndSize(<const char*>name, size)
    return text if text in _KNOWN else None


cdef object read_annotations_map(
    bytes data, Py_ssize_t p, Py_ssize_t end, Py_ssize_t* budget, Py_ssize_t* stop
):
    """The `Annotations` of the message-annotations map at p, and its end."""
    cdef const uint8_t* d = <const uint8_t*>PyBytes_AS_STRING(data)
    cdef Py_ssize_t before = budget[0], count, name, value
    cdef bint canonical = True
    cdef dict known = {}
    cdef bytes text
    p = open_map(data, p, end, budget, &count, stop)
    while count:
        if p >= stop[0]:
            raise _values.missing_value(p)
        if not (is_symbol(d[p]) or is_string(d[p]) or is_ulong(d[p])):
            raise _pure.bad_annotation_key(d[p], p)
        value = check_value(data, p, stop[0], 2, budget)
        if is_string(d[p]):
            canonical = False
        name = content_start(d, p)
        p = check_value(data, value, stop[0], 2, budget)
        text = copy_known_name(d + name, value - name)
        if text is not None:
            if text in known:
                raise _pure.second_annotation(text, value)
            known[text] = (value, p)
        count -= 2
    check_end(p, stop[0])
    return _pure.judge_annotations(data, known, canonical, before - budget[0])


cdef Py_ssize_t section_code(bytes data, Py_ssize_t p, Py_ssize_t end, int* code) except -1:
    """Set the section's code, in any form of its descriptor; return where its value starts."""
    cdef const uint8_t* d = <const uint8_t*>PyBytes_AS_STRING(data)
    cdef Py_ssize_t stop
    cdef uint64_t number
    if p >= end or d[p]:
        raise _pure.missing_section(p)
    stop = check_descriptor(data, p + 1, end)
    if d[p + 1] == 0x53:
        number = d[p + 2]
    elif d[p + 1] == 0x80:
        number = be64(d + p + 2)
    else:
        number = _pure.SYMBOLIC.get(data[content_start(d, p + 1) : stop], 0)
    if number < HEADER or number > FOOTER:
        raise _pure.unknown_section(number, p)
    code[0] = <int>number
    return stop


cdef inline bint is_in_order(int before, int code) noexcept nogil:
    """Whether a section may follow another one in a canonical message."""
    if code < HEADER or code > FOOTER or code < before:
        return False
    if code == before:
        return code == DATA or code == SEQUENCE
    return not ((code == SEQUENCE or code == VALUE) and (before == DATA or before == SEQUENCE))


cdef struct Section:
    int code
    Py_ssize_t first, stop  # of the value


cdef Py_ssize_t read_sections(
    bytes data, Py_ssize_t p, Py_ssize_t end, Section* sections, list annotations
) except -1:
    """Check all sections in the order in which the client wrote them; return their number.

    Writes them to `sections` unless that is NULL, and appends the `Annotations` to `annotations`.
    """
    cdef Py_ssize_t budget = ELEMENTS_MAX, count = 0, first, stop
    cdef int code = 0, codes = 0, bodies = 1 << 5 | 1 << 6 | 1 << 7, bit
    while p < end:
        first = section_code(data, p, end, &code)
        bit = 1 << (code - HEADER)
        if codes & bit and code != DATA and code != SEQUENCE:
            raise _pure.second_section(code, p)
        if DATA <= code <= VALUE and codes & bodies & ~bit:
            raise _pure.second_body(code, p)
        codes |= bit
        if code == MESSAGE_ANNOTATIONS:
            annotations.append(read_annotations_map(data, first, end, &budget, &stop))
        else:
            stop = check_section_value(data, code, first, end, &budget)
        if sections != NULL:
            sections[count] = Section(code, first, stop)
        count += 1
        p = stop
    return count


def inspect_message(bytes data not None, Py_ssize_t start, Py_ssize_t end, seen):
    """Check a whole message; see the pure-Python implementation."""
    cdef const uint8_t* d = <const uint8_t*>PyBytes_AS_STRING(data)
    cdef Py_ssize_t budget = ELEMENTS_MAX, p = start, stop
    cdef int code = 0, before = 0
    cdef object annotations = _BARE
    cdef bytes section
    check_bounds(data, start, end)
    if start == end:
        return _EMPTY
    while p < end:
        code = d[p + 2] if p + 2 < end else 0
        if not is_in_order(before, code) or d[p] or d[p + 1] != 0x53:
            return inspect_any(data, start, end)
        if code == MESSAGE_ANNOTATIONS:
            section = seen.section
            stop = p + PyBytes_GET_SIZE(section)
            if p < stop <= end and not memcmp(d + p, PyBytes_AS_STRING(section), stop - p):
                annotations = seen.annotations
                budget -= <Py_ssize_t>annotations.elements
            else:
                annotations = read_annotations_map(data, p + 3, end, &budget, &stop)
                if annotations.producer is None and annotations.elements <= SEEN_ELEMENTS_MAX:
                    seen.section = PyBytes_FromStringAndSize(<const char*>d + p, stop - p)
                    seen.annotations = annotations
            p = stop
        else:
            p = check_section_value(data, code, p + 3, end, &budget)
        before = code
    return annotations


cdef object inspect_any(bytes data, Py_ssize_t start, Py_ssize_t end):
    """Check a message whose sections have another order or other descriptors."""
    cdef list annotations = []
    read_sections(data, start, end, NULL, annotations)
    return _pure.not_canonical(annotations[0] if annotations else _BARE)


def read_section_code(bytes data not None, Py_ssize_t position, Py_ssize_t end):
    """The section's code, and where its value starts; see the pure-Python implementation."""
    cdef int code = 0
    check_bounds(data, position, end)
    position = section_code(data, position, end, &code)
    return code, position


def check_section(
    bytes data not None, int code, Py_ssize_t position, Py_ssize_t end, list budget not None
):
    """The end of the section's value at `position`; see the pure-Python implementation."""
    cdef Py_ssize_t left = budget[0], stop
    check_bounds(data, position, end)
    try:
        if code == MESSAGE_ANNOTATIONS:
            read_annotations_map(data, position, end, &left, &stop)
        else:
            stop = check_section_value(data, code, position, end, &left)
    finally:
        budget[0] = left
    return stop


def read_annotations(
    bytes data not None, Py_ssize_t position, Py_ssize_t end, list budget not None
):
    """Where the message-annotations end, and what they say; see the pure-Python implementation."""
    cdef Py_ssize_t left = budget[0], stop = 0
    cdef object annotations
    check_bounds(data, position, end)
    try:
        annotations = read_annotations_map(data, position, end, &left, &stop)
    finally:
        budget[0] = left
    return stop, annotations


cdef int check_bounds(bytes data, Py_ssize_t start, Py_ssize_t end) except -1:
    """Check the caller's positions: the functions above do not compare `end` with the data."""
    if start < 0 or end > PyBytes_GET_SIZE(data):
        raise ValueError(f"bytes {start} to {end} of {PyBytes_GET_SIZE(data)}")
    return 0


# --- the canonical form ---------------------------------------------------------------------------


def rewrite_message(bytes data not None, Py_ssize_t start, Py_ssize_t end, key, publisher):
    """The canonical form of a message; see the pure-Python implementation."""
    cdef Py_ssize_t count, sections_max, i, total = 0, own_count = 0
    cdef Section* sections
    cdef object annotations_count, pairs
    cdef bytes own, section = b"", written
    check_bounds(data, start, end)
    # A section has at least four bytes, and only body sections can be repeated.
    sections_max = min((end - start) // 4 if end > start else 0, ELEMENTS_MAX + 16) + 1
    sections = <Section*>malloc(sections_max * sizeof(Section))
    if sections == NULL:
        raise MemoryError("the sections of a message")
    try:
        count = read_sections(data, start, end, sections, [])
        annotations_count, pairs = _pure.service_annotations(key, publisher)
        for i in range(count):
            if sections[i].code == MESSAGE_ANNOTATIONS:
                own = copy_own_pairs(data, sections[i], key is None, &own_count)
                annotations_count += own_count
                pairs += own
            else:
                total += 3 + sections[i].stop - sections[i].first
        if annotations_count or not total:
            section = _pure.annotations_section(annotations_count, pairs)
        written = PyBytes_FromStringAndSize(NULL, total + PyBytes_GET_SIZE(section))
        put_sections(<uint8_t*>PyBytes_AS_STRING(written), data, sections, count, section)
    finally:
        free(sections)
    return written


cdef void put_sections(
    uint8_t* out, bytes data, const Section* sections, Py_ssize_t count, bytes annotations
) noexcept:
    """Write all sections in the order of their codes; `annotations` is a whole section."""
    cdef const uint8_t* d = <const uint8_t*>PyBytes_AS_STRING(data)
    cdef Py_ssize_t i, size
    cdef int code
    for code in range(HEADER, FOOTER + 1):
        if code == MESSAGE_ANNOTATIONS:
            memcpy(out, PyBytes_AS_STRING(annotations), PyBytes_GET_SIZE(annotations))
            out += PyBytes_GET_SIZE(annotations)
            continue
        for i in range(count):
            if sections[i].code == code:
                size = sections[i].stop - sections[i].first
                out = put_section_code(out, <uint8_t>code)
                memcpy(out, d + sections[i].first, size)
                out += size


cdef bytes copy_own_pairs(bytes data, Section section, bint keep_key, Py_ssize_t* copied):
    """The client's own annotations without the service's, string keys written as symbols."""
    cdef const uint8_t* d = <const uint8_t*>PyBytes_AS_STRING(data)
    cdef Py_ssize_t budget = ELEMENTS_MAX, count, stop, p, name, value, after, size
    cdef bint keep
    cdef bytes text
    cdef bytes pairs = PyBytes_FromStringAndSize(NULL, section.stop - section.first)
    cdef uint8_t* begin = <uint8_t*>PyBytes_AS_STRING(pairs)
    cdef uint8_t* out = begin  # a symbol is as long as the string that it replaces
    p = open_map(data, section.first, section.stop, &budget, &count, &stop)
    copied[0] = 0
    while count:
        value = check_value(data, p, stop, 2, &budget)
        after = check_value(data, value, stop, 2, &budget)
        name = content_start(d, p)
        size = value - name
        text = copy_known_name(d + name, size)
        keep = text is None or text not in _OWNED
        if text == _KEY:
            keep = keep_key and is_string(d[value])
        if keep:
            if is_string(d[p]):
                if not is_ascii(d + name, size):
                    raise _values.symbol_not_ascii(name)
                out = put_variable(out, 0xA3, d + name, size)
                p = value
            memcpy(out, d + p, after - p)
            out += after - p
            copied[0] += 2
        count -= 2
        p = after
    return pairs[: out - begin]
