"""Activation rows in the forms that the dot kernels read. One `Form` = one record per token, every record at `address
+ t * stride`.

    f32     the float32 row itself (F32, F16, BF16 weights)
    q8_32   int8 per 32 (types with blocks of 32: Q4_0 .. Q8_0, IQ4_NL, MXFP4), needs n_cols % 32 == 0
            offset 0               int8    q    [n_cols]
            n_cols                 float32 d    [n_cols / 32]   x ~ d * q
            n_cols + n_cols / 8    float32 s    [n_cols / 32]   d * sum of the 32 q
            n_cols + n_cols / 4    int32   bias [n_cols / 32]   -128 * sum of the 32 q: where a sum of (w + 128) * q
            starts
    q8_256  int8 per 256 (K types, IQ4_XS), needs n_cols % 256 == 0
            offset 0               int8    q    [n_cols]
            n_cols                 int16   bsum [n_cols / 16]   sum of each 16 q
            n_cols + n_cols / 8    float32 d    [n_cols / 256]  x ~ d * q
            + n_cols / 64          int16   pair [n_cols / 32]   sum of each 32 q
            dot kernels may read (and not use) _OVERREAD_BYTES behind it
Blocks are ggml's (Q8_0 / Q8_1 and Q8_K); scales and sums stay float32 or integers, so that no sum of large
activations overflows a half float. d = max |x| / 127, q = round-half-even(x / d), so |q| <= 127 always (the dot
kernels rely on it). A block whose d would be subnormal becomes zero. A row with infinities or NaNs gives non-finite
dots.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit, prange

from kernels.cpu.addresses import address, aligned_address
from kernels.cpu.native_call import call_native
from kernels.cpu.parallel import num_threads
from kernels.cpu.recycled import OCTETS
from kernels.cpu.vector_ir import F32, I8, I16, I32, Emitter, vec
from kernels.quant_types import QuantType, block_size

FORM_F32, FORM_Q8_32, FORM_Q8_256 = 0, 1, 2
FORM_KEYS = ("f32", "q8_32", "q8_256")
ALIGN = 64
_OVERREAD_BYTES = 48
_SERIAL_ROWS = 4  # up to this many rows one thread is faster than waking the others
_SMALLEST_NORMAL = 1.1754943508222875e-38
_FLOAT_TYPES = (QuantType.F32, QuantType.F16, QuantType.BF16)


@dataclass(slots=True)
class Form:
    """Records of one call's tokens; `owner` keeps the memory at `address` alive."""

    address: int
    stride: int
    owner: np.ndarray


def form_of(quant_type: QuantType) -> int:
    """FORM_* that the direct dot kernels of `quant_type` read."""
    if quant_type in _FLOAT_TYPES:
        return FORM_F32
    return FORM_Q8_32 if block_size(quant_type) == 32 else FORM_Q8_256


def record_bytes(form: int, n_cols: int) -> int:
    """Stride of one token's record, a multiple of 64 except for f32, whose records are the caller's rows."""
    if form == FORM_F32:
        return 4 * n_cols
    unit = 32 if form == FORM_Q8_32 else 256
    if n_cols % unit:
        raise ValueError(f"activations of width {n_cols} do not divide into blocks of {unit}")
    if form == FORM_Q8_32:
        n_bytes = n_cols + 3 * (n_cols // 8)
    else:
        n_bytes = n_cols + n_cols // 8 + n_cols // 64 + n_cols // 16 + _OVERREAD_BYTES
    return (n_bytes + ALIGN - 1) // ALIGN * ALIGN


def record_buffer(form: int, n_rows: int, n_cols: int) -> np.ndarray:
    """Uninitialised memory for n_rows records at its first 64-byte boundary."""
    n_bytes = n_rows * record_bytes(form, n_cols) + ALIGN
    return OCTETS.take(n_bytes) if n_rows == 1 else np.empty(n_bytes, np.uint8)


def new_form(form: int, n_rows: int, n_cols: int) -> Form:
    """Uninitialised records for n_rows tokens, 64-byte aligned."""
    owner = record_buffer(form, n_rows, n_cols)
    return Form(aligned_address(owner), record_bytes(form, n_cols), owner)


@njit(nogil=True, cache=True)
def quantize_row(quantizer, x, record, n_cols):
    """Write the record of the float32 row at `x` by the function at address `quantizer`."""
    call_native(quantizer, x, record, n_cols)


@njit(nogil=True, cache=True)
def _quantize_serial(quantizer, x, buffer, stride):
    first = aligned_address(buffer)
    for i in range(x.shape[0]):
        quantize_row(quantizer, address(x) + i * 4 * x.shape[1], first + i * stride, x.shape[1])
    return first


@njit(nogil=True, cache=True, parallel=True)
def _quantize_parallel(quantizer, x, buffer, stride, n_parts):
    first = aligned_address(buffer)
    for part in prange(n_parts):
        for i in range(part * x.shape[0] // n_parts, (part + 1) * x.shape[0] // n_parts):
            quantize_row(quantizer, address(x) + i * 4 * x.shape[1], first + i * stride, x.shape[1])
    return first


def quantize(x: np.ndarray, form: int, quantizer: int) -> Form:
    """The records of float32 x [T, n_cols] (C-contiguous) in FORM_* `form`, by the function at address `quantizer`.

    Raises ValueError for other arrays and for a width that the form's blocks do not divide.
    """
    if x.dtype != np.float32 or x.ndim != 2 or not x.flags.c_contiguous:
        raise ValueError(f"activations must be C-contiguous float32 [T, D], got {x.dtype} {x.shape}")
    n_rows, n_cols = x.shape
    stride, owner = record_bytes(form, n_cols), record_buffer(form, n_rows, n_cols)
    if n_rows <= _SERIAL_ROWS:
        return Form(_quantize_serial(quantizer, x, owner, stride), stride, owner)
    return Form(_quantize_parallel(quantizer, x, owner, stride, num_threads()), stride, owner)


def _block_scale(e: Emitter, amax: Any) -> tuple[Any, Any]:
    """(d, 1 / d) of a block from its largest magnitude; both 0 where d would be subnormal. NaN stays NaN in d."""
    b = e.b
    d = b.fdiv(amax, e.f32(127.0))
    tiny = b.fcmp_ordered("<", d, e.f32(_SMALLEST_NORMAL))
    inverse = b.select(tiny, e.f32(0.0), b.fdiv(e.f32(1.0), d))
    return b.select(tiny, e.f32(0.0), d), inverse


def _amax(e: Emitter, x: Any, lanes: int) -> Any:
    """Largest |x| of the first `lanes` lanes of x as a scalar; a NaN anywhere gives NaN."""
    magnitude = e.call("llvm.fabs", x.type, [x])
    return e.reduce(lambda p, q: e.call("llvm.maximum", p.type, [p, q]), magnitude, lanes)


def _quantize(e: Emitter, x: Any, inverse: Any, lanes: int) -> Any:
    """round-half-even(x * inverse) as int32 lanes."""
    scaled = e.b.fmul(x, e.splat(inverse, lanes))
    return e.b.fptosi(e.call("llvm.rint", scaled.type, [scaled]), vec(I32, lanes))


def emit_quantize_32(e: Emitter, x: Any, record: Any, n_cols: Any) -> None:
    """Write the q8_32 record of one float32 row."""
    b = e.b
    n_eighth = b.lshr(n_cols, e.i64(3))
    d_base = b.add(record, n_cols)
    s_base = b.add(d_base, n_eighth)
    bias_base = b.add(s_base, n_eighth)

    def body(i: Any, _: list[Any]) -> list[Any]:
        row = e.load(b.add(x, b.shl(i, e.i64(7))), vec(F32, 32), 4)
        d, inverse = _block_scale(e, _amax(e, row, 32))
        q = _quantize(e, row, inverse, 32)
        total = e.reduce(b.add, q, 32)
        at = b.shl(i, e.i64(2))
        e.store(b.trunc(q, vec(I8, 32)), b.add(record, b.shl(i, e.i64(5))), 1)
        e.store(d, b.add(d_base, at), 4)
        e.store(b.fmul(d, b.sitofp(total, F32)), b.add(s_base, at), 4)
        e.store(b.mul(total, e.i32(-128)), b.add(bias_base, at), 4)
        return []

    e.loop(b.lshr(n_cols, e.i64(5)), [], body)


def emit_quantize_256(e: Emitter, x: Any, record: Any, n_cols: Any) -> None:
    """Write the q8_256 record of one float32 row."""
    b = e.b
    bsum_base = b.add(record, n_cols)
    d_base = b.add(bsum_base, b.lshr(n_cols, e.i64(3)))
    pair_base = b.add(d_base, b.lshr(n_cols, e.i64(6)))

    def body(i: Any, _: list[Any]) -> list[Any]:
        x_block = b.add(x, b.shl(i, e.i64(10)))

        def widest(j: Any, best: list[Any]) -> list[Any]:
            part = e.load(b.add(x_block, b.shl(j, e.i64(6))), vec(F32, 16), 4)
            magnitude = e.call("llvm.fabs", part.type, [part])
            return [e.call("llvm.maximum", part.type, [best[0], magnitude])]

        (best,) = e.loop(e.i64(16), [e.zero(vec(F32, 16))], widest)
        d, inverse = _block_scale(e, _amax(e, best, 16))
        e.store(d, b.add(d_base, b.shl(i, e.i64(2))), 4)
        q_block = b.add(record, b.shl(i, e.i64(8)))
        bsum_block = b.add(bsum_base, b.shl(i, e.i64(5)))

        def write(j: Any, _: list[Any]) -> list[Any]:
            q = _quantize(e, e.load(b.add(x_block, b.shl(j, e.i64(6))), vec(F32, 16), 4), inverse, 16)
            e.store(b.trunc(q, vec(I8, 16)), b.add(q_block, b.shl(j, e.i64(4))), 1)
            e.store(b.trunc(e.reduce(b.add, q, 16), I16), b.add(bsum_block, b.shl(j, e.i64(1))), 2)
            return []

        e.loop(e.i64(16), [], write)
        bsum = e.load(bsum_block, vec(I16, 16), 2)
        pairs = b.add(e.shuffle(bsum, range(0, 16, 2)), e.shuffle(bsum, range(1, 16, 2)))
        e.store(pairs, b.add(pair_base, b.shl(i, e.i64(4))), 2)
        return []

    e.loop(b.lshr(n_cols, e.i64(8)), [], body)


QUANTIZERS: dict[int, Callable[[Emitter, Any, Any, Any], None]] = {
    FORM_Q8_32: emit_quantize_32,
    FORM_Q8_256: emit_quantize_256,
}
"""Emit `void quantize(x, record, n_cols)`, one row, by FORM_*."""
