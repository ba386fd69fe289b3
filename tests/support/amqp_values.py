"""Random AMQP values of every primitive type."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from penstock.amqp import types as t


def ints(kind: type[int], bits: int, *, signed: bool) -> st.SearchStrategy[int]:
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
    # Small values are where the encodings change.
    near = st.integers(max(low, -130), min(high, 300))
    return (near | st.integers(low, high)).map(kind)


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=300)
ASCII = st.text(st.characters(max_codepoint=127), max_size=300)
SCALARS: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    ints(t.Ubyte, 8, signed=False),
    ints(t.Ushort, 16, signed=False),
    ints(t.Uint, 32, signed=False),
    ints(t.Ulong, 64, signed=False),
    ints(t.Byte, 8, signed=True),
    ints(t.Short, 16, signed=True),
    ints(t.Int, 32, signed=True),
    ints(t.Long, 64, signed=True),
    ints(t.Timestamp, 64, signed=True),
    st.floats(allow_nan=False),
    st.floats(width=32, allow_nan=False).map(t.Float),
    st.characters(exclude_categories=["Cs"]).map(t.Char),
    st.binary(min_size=4, max_size=4).map(t.Decimal32),
    st.binary(min_size=8, max_size=8).map(t.Decimal64),
    st.binary(min_size=16, max_size=16).map(t.Decimal128),
    st.uuids(),
    st.binary(max_size=300),
    TEXT,
    ASCII.map(t.Symbol),
)
