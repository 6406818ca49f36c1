"""Q8_0 blocks from float32 or bfloat16 rows in one pass, bit for bit ggml's reference: scale = largest / 127, codes
rounded half away from zero.

One vector-IR function a kind of input, called without numba, so that a conversion to Q8_0 starts without it. The same
pass finds the largest magnitude, which tells whether every weight was finite and can be stored.
"""

from __future__ import annotations

import ctypes
from functools import cache, partial
from typing import Any

import numpy as np

from kernels.cpu.native import address_of
from kernels.cpu.vector_ir import F16, F32, I8, I16, I32, Emitter, vec

_BLOCK, _BLOCK_BYTES = 32, 34
_NEARLY_HALF_BITS = 0x3EFFFFFF
_FUNCTION = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 4)  # releases the GIL


def quantize_q8_0(x: np.ndarray) -> tuple[np.ndarray, float]:
    """`x` float32, or uint16 holding bfloat16, contiguous, of whole blocks, as fresh uint8 [n_blocks, 34]: float16
    scale, 32 int8. Also the largest magnitude in `x`, NaN or infinite if anything is; such blocks, and those with a
    weight beyond 127 * 65504, hold nothing of use.
    """
    if x.dtype not in (np.float32, np.uint16) or not x.flags.c_contiguous or x.size % _BLOCK:
        raise ValueError(f"x must be contiguous float32 or uint16 in blocks of {_BLOCK}, got {x.dtype} {x.shape}")
    out = np.empty((x.size // _BLOCK, _BLOCK_BYTES), np.uint8)
    largest = np.zeros(1, np.uint32)
    if out.size:
        _function(x.dtype == np.uint16)(x.ctypes.data, out.ctypes.data, len(out), largest.ctypes.data)
    return out, float(largest.view(np.float32)[0])


@cache
def _function(is_bf16: bool) -> Any:
    name = f"quantize_q8_0_{'bf16' if is_bf16 else 'f32'}"
    return _FUNCTION(address_of(name, 4, partial(_emit, is_bf16=is_bf16)))


def _emit(e: Emitter, x: Any, out: Any, n_blocks: Any, largest_at: Any, is_bf16: bool) -> None:
    """Blocks from address `x` to address `out`; the bits of the largest magnitude to `largest_at`."""
    b, words, bytes_in = e.b, vec(I32, _BLOCK), (2 if is_bf16 else 4) * _BLOCK

    def umax(one: Any, other: Any) -> Any:
        return e.call("llvm.umax", one.type, [one, other])

    def block(i: Any, carried: list[Any]) -> list[Any]:
        source, target = b.add(x, b.mul(i, e.i64(bytes_in))), b.add(out, b.mul(i, e.i64(_BLOCK_BYTES)))
        if is_bf16:
            bits = b.shl(b.zext(e.load(source, vec(I16, _BLOCK)), words), e.const(words, 16))
        else:
            bits = e.load(source, words)
        largest = e.reduce(umax, b.and_(bits, e.const(words, 0x7FFFFFFF)), _BLOCK)
        scale = b.fdiv(b.bitcast(largest, F32), e.f32(127.0))
        inverse = b.fdiv(e.f32(1.0), scale)  # infinite in blocks of zeros, and of weights so small that the scale is 0
        inverse = b.select(b.fcmp_ordered("<", inverse, e.f32(np.inf)), inverse, e.f32(0.0))
        scaled = b.fmul(b.bitcast(bits, vec(F32, _BLOCK)), e.splat(inverse, _BLOCK))
        e.store(b.fptrunc(scale, F16), target)
        e.store(b.trunc(_rounded(e, scaled), vec(I8, _BLOCK)), e.at(target, 2))
        return [umax(carried[0], largest)]

    e.store(e.loop(n_blocks, [e.i32(0)], block)[0], largest_at)


def _rounded(e: Emitter, values: Any) -> Any:
    """float32 lanes below 2^22 as int32, halves away from zero (ggml's roundf): cut off what is left after adding the
    largest number below a half, of the same sign. A half plus that rounds up to 1; anything below stays below.
    """
    b, words = e.b, vec(I32, values.type.count)
    sign = b.and_(b.bitcast(values, words), e.const(words, -(1 << 31)))
    nearly_half = b.or_(sign, e.const(words, _NEARLY_HALF_BITS))
    return b.fptosi(b.fadd(values, b.bitcast(nearly_half, values.type)), words)
