"""Arrow arrays over the buffers that `kernels.ArrowColumnBuilder` fills, without a copy."""

from __future__ import annotations

import pyarrow as pa

from penstock.kernels import MapColumn, TextColumn

TIME = pa.timestamp("us", tz="UTC")
TEXT_MAP = pa.map_(pa.string(), pa.string())


def number_array(kind: pa.DataType, rows: int, data: bytes) -> pa.Array:
    """Numbers of 64 bits."""
    return pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(data)])


def text_array(texts: TextColumn, rows: int, kind: pa.DataType | None = None) -> pa.Array:
    """`kind` is string unless it is given."""
    valid = None if texts.valid is None else pa.py_buffer(texts.valid)
    buffers = [valid, pa.py_buffer(texts.ends), pa.py_buffer(texts.data)]
    return pa.Array.from_buffers(kind or pa.string(), rows, buffers)


def map_array(maps: MapColumn, rows: int, kind: pa.DataType, values: pa.Array) -> pa.Array:
    """`values` are those of all rows, as the map type `kind` has them."""
    names = text_array(maps.names, len(values))
    fields = [kind.key_field, kind.item_field]
    entries = pa.StructArray.from_arrays([names, values], fields=fields)
    return pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(maps.ends)], children=[entries])


def value_array(maps: MapColumn) -> pa.Array:
    """The values of all rows."""
    return text_array(maps.values, len(maps.values.ends) // 4 - 1)
