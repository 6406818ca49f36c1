"""GGUF key-value metadata on its way into a file: typed values kept as the bytes that will be written.

Keeping bytes makes copying from another GGUF exact (integer widths, invalid UTF-8 in tokens), and the size of a header
is known before anything is written. Reading metadata for use is `models.gguf`'s work, not this module's.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator

import numpy as np
from gguf.constants import GGUFValueType
from numpy.typing import NDArray

from models.errors import CheckpointError

_ARRAY_TYPES = {
    "u1": GGUFValueType.UINT8,
    "i1": GGUFValueType.INT8,
    "u2": GGUFValueType.UINT16,
    "i2": GGUFValueType.INT16,
    "u4": GGUFValueType.UINT32,
    "i4": GGUFValueType.INT32,
    "f4": GGUFValueType.FLOAT32,
    "u8": GGUFValueType.UINT64,
    "i8": GGUFValueType.INT64,
    "f8": GGUFValueType.FLOAT64,
    "b1": GGUFValueType.BOOL,
}

_STRUCT_CODES = {
    GGUFValueType.UINT8: "B",
    GGUFValueType.INT8: "b",
    GGUFValueType.UINT16: "H",
    GGUFValueType.INT16: "h",
    GGUFValueType.UINT32: "I",
    GGUFValueType.INT32: "i",
    GGUFValueType.FLOAT32: "f",
    GGUFValueType.BOOL: "?",
    GGUFValueType.UINT64: "Q",
    GGUFValueType.INT64: "q",
    GGUFValueType.FLOAT64: "d",
}


def string_bytes(text: str | bytes) -> bytes:
    """`text` as GGUF stores strings: a 64-bit length and UTF-8; surrogate escapes become the raw bytes they stand
    for.
    """
    raw = text if isinstance(text, bytes) else text.encode("utf-8", "surrogateescape")
    return struct.pack("<Q", len(raw)) + raw


class Metadata:
    """An ordered set of typed keys. Setting a key again replaces its value and keeps its place."""

    def __init__(self) -> None:
        self._entries: dict[str, tuple[GGUFValueType, bytes]] = {}

    def __contains__(self, key: str) -> bool:
        return key in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def copy(self) -> Metadata:
        other = Metadata()
        other._entries = dict(self._entries)
        return other

    def remove(self, key: str) -> None:
        """Drop `key` if it is there."""
        self._entries.pop(key, None)

    def raw(self, key: str, value_type: int, payload: bytes) -> None:
        """Set `key` to `payload`, the value's bytes as they stand after the type word in a GGUF header."""
        self._entries[key] = (GGUFValueType(value_type), payload)

    def number(self, key: str, value: float, value_type: GGUFValueType) -> None:
        """Set `key` to a number or bool of any GGUF type. Raises CheckpointError where that cannot hold it."""
        try:
            payload = struct.pack("<" + _STRUCT_CODES[value_type], value)
        except (struct.error, OverflowError) as error:
            raise CheckpointError(f"{key} is {value}, which a GGUF {value_type.name} cannot hold") from error
        self.raw(key, value_type, payload)

    def u16(self, key: str, value: int) -> None:
        self.number(key, value, GGUFValueType.UINT16)

    def u32(self, key: str, value: int) -> None:
        self.number(key, value, GGUFValueType.UINT32)

    def i32(self, key: str, value: int) -> None:
        self.number(key, value, GGUFValueType.INT32)

    def f32(self, key: str, value: float) -> None:
        self.number(key, value, GGUFValueType.FLOAT32)

    def boolean(self, key: str, value: bool) -> None:
        self.number(key, value, GGUFValueType.BOOL)

    def string(self, key: str, value: str | bytes) -> None:
        self.raw(key, GGUFValueType.STRING, string_bytes(value))

    def strings(self, key: str, values: Iterable[str | bytes]) -> None:
        parts = [string_bytes(value) for value in values]
        self.packed_strings(key, len(parts), b"".join(parts))

    def packed_strings(self, key: str, n_strings: int, packed: bytes) -> None:
        """Set `key` to an array of strings that follow one another in `packed`, each behind its length."""
        self.raw(key, GGUFValueType.ARRAY, struct.pack("<IQ", GGUFValueType.STRING, n_strings) + packed)

    def array(self, key: str, values: NDArray[np.generic]) -> None:
        """Set `key` to a one-dimensional numeric array; the dtype decides the GGUF type."""
        name = values.dtype.kind + str(values.dtype.itemsize)
        if values.ndim != 1 or name not in _ARRAY_TYPES:
            raise ValueError(
                f"{key}: GGUF arrays are one-dimensional numbers, not {values.dtype} of {values.ndim} dimensions"
            )
        little = values.astype(values.dtype.newbyteorder("<"), copy=False)
        self.raw(key, GGUFValueType.ARRAY, struct.pack("<IQ", _ARRAY_TYPES[name], values.size) + little.tobytes())

    def text(self, key: str) -> str | None:
        """The value of string key `key`, or None where it is absent or no string."""
        value_type, payload = self._entries.get(key, (GGUFValueType.UINT8, b""))
        return payload[8:].decode("utf-8", "surrogateescape") if value_type is GGUFValueType.STRING else None

    def integer(self, key: str) -> int | None:
        """The value of whole-number key `key`, or None where it is absent or something else."""
        value_type, payload = self._entries.get(key, (GGUFValueType.STRING, b""))
        code = _STRUCT_CODES.get(value_type, "?")
        return int(struct.unpack("<" + code, payload)[0]) if code in "BbHhIiQq" else None

    def encode(self) -> bytes:
        """All entries as they stand in a GGUF header."""
        return b"".join(
            string_bytes(key) + struct.pack("<I", value_type) + payload
            for key, (value_type, payload) in self._entries.items()
        )
