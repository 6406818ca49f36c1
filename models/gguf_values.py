"""Metadata values of a GGUF header: numbers, strings and arrays, each checked against its declared type.

Arrays of strings stay packed and are decoded on demand (`StringArray`); arrays of numbers become numpy arrays. Arrays
of arrays are refused, as llama.cpp refuses them.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np
from gguf.constants import GGUFValueType as ValueType

from models.gguf_cursor import Cursor, show

_DTYPES: dict[ValueType, str] = {
    ValueType.UINT8: "<u1",
    ValueType.INT8: "<i1",
    ValueType.UINT16: "<u2",
    ValueType.INT16: "<i2",
    ValueType.UINT32: "<u4",
    ValueType.INT32: "<i4",
    ValueType.FLOAT32: "<f4",
    ValueType.UINT64: "<u8",
    ValueType.INT64: "<i8",
    ValueType.FLOAT64: "<f8",
    ValueType.BOOL: "<u1",
}
_STRUCTS = {kind: struct.Struct("<" + np.dtype(dtype).char) for kind, dtype in _DTYPES.items()}
_STRUCTS[ValueType.UINT64] = struct.Struct("<Q")
_STRUCTS[ValueType.INT64] = struct.Struct("<q")


@dataclass(frozen=True, slots=True)
class Kind:
    """How a value is stored: `type`, and for an array the type of its elements."""

    type: ValueType
    element: ValueType | None = None


class StringArray(Sequence[str]):
    """Read-only list of strings, decoded on access; bytes that are not UTF-8 become surrogate escapes and so
    survive.
    """

    __slots__ = ("_data", "_starts")

    def __init__(self, data: bytes, starts: array[int]) -> None:
        """`data`: the packed array; string i is data[starts[i] : starts[i + 1] - 8]."""
        self._data = data
        self._starts = starts

    def __len__(self) -> int:
        return len(self._starts) - 1

    @property
    def packed(self) -> bytes:
        """All strings as stored, each behind its length."""
        return self._data

    def raw(self, index: int) -> bytes:
        """Bytes of one string, as stored."""
        if not 0 <= index < len(self):
            raise IndexError(index)
        return self._data[self._starts[index] : self._starts[index + 1] - 8]

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        return self.raw(index + len(self) if index < 0 else index).decode("utf-8", "surrogateescape")

    def __iter__(self) -> Iterator[str]:
        data, starts = self._data, self._starts
        start = starts[0]
        for i in range(1, len(starts)):
            following = starts[i]
            yield data[start : following - 8].decode("utf-8", "surrogateescape")
            start = following

    def __eq__(self, other: object) -> bool:
        if isinstance(other, (StringArray, list, tuple)):
            return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]  # equal to lists, so not hashable, like lists

    def __repr__(self) -> str:
        return f"StringArray({self[:4]!r}{'...' if len(self) > 4 else ''}, {len(self)} strings)"


def read_value(cursor: Cursor) -> tuple[Any, Kind]:
    """The value at the cursor, with its type. Raises GGUFError on an unknown type, a false count, a bad bool or bad
    UTF-8.
    """
    kind = _value_type(cursor)
    if kind is ValueType.STRING:
        return decode_text(cursor, cursor.raw_string()), Kind(kind)
    if kind is ValueType.ARRAY:
        return _read_array(cursor)
    (value,) = cursor.unpack(_STRUCTS[kind])
    if kind is ValueType.BOOL:
        if value > 1:
            raise cursor.error(
                f"{cursor.item} is a bool stored as {value}; only 0 and 1 are allowed: the file is damaged"
            )
        value = bool(value)
    return value, Kind(kind)


def decode_text(cursor: Cursor, raw: bytes) -> str:
    """A single string, which must be UTF-8."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise cursor.error(f"{cursor.item} is not valid UTF-8 at its byte {error.start}: {show(raw)}") from None


def _value_type(cursor: Cursor) -> ValueType:
    number = cursor.u32()
    try:
        kind: ValueType = ValueType(number)
    except ValueError:
        raise cursor.error(
            f"{cursor.item} has the unknown value type {number}; GGUF defines 0 to 12: damaged file?"
        ) from None
    return kind


def _read_array(cursor: Cursor) -> tuple[Any, Kind]:
    element = _value_type(cursor)
    n_items = cursor.u64()
    if element is ValueType.ARRAY:
        raise cursor.error(f"{cursor.item} is an array of arrays, which pearl (like llama.cpp) does not read")
    if element is ValueType.STRING:
        cursor.count(n_items, 8, "strings")
        base = cursor.pos
        starts = cursor.skip_strings(n_items)
        return StringArray(cursor.data[base : cursor.pos], starts), Kind(ValueType.ARRAY, element)
    dtype = np.dtype(_DTYPES[element])
    cursor.count(n_items, dtype.itemsize, "numbers")
    start = cursor.need(n_items * dtype.itemsize)
    values = np.frombuffer(cursor.data, dtype, n_items, start).copy()
    if element is ValueType.BOOL:
        if values.size and values.max() > 1:
            raise cursor.error(f"{cursor.item} is an array of bools with a {values.max()} in it: the file is damaged")
        values = values.astype(np.bool_)
    return values, Kind(ValueType.ARRAY, element)
