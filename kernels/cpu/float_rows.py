"""Contiguous float32 rows at an address, inside numba code: view them, sum their squares.

Ops take rows of arrays that may lie apart (slices of a fused q, k, v result). Reading such an array through its own
strides would keep the inner loops scalar, so kernels turn `address + i * stride` into a plain row first.
"""

from __future__ import annotations

import numpy as np
from numba import carray, njit, types
from numba.extending import intrinsic

from kernels.cpu.vector_ir import F32, Emitter, vec

V16F32 = vec(F32, 16)


@intrinsic
def _pointer(typingctx, address):
    """The int64 address as an untyped pointer."""

    def codegen(context, b, signature, args):
        return b.inttoptr(args[0], context.get_value_type(types.voidptr))

    return types.voidptr(types.int64), codegen


@njit(nogil=True, cache=True)
def float_row(address, n):
    """View n float32 at `address` as a contiguous vector; the caller keeps the memory alive."""
    return carray(_pointer(address), (n,), np.float32)


@intrinsic
def _sum_squares_main(typingctx, address, n_pairs):
    """Sum of squares of n_pairs >= 1 times 32 float32 at `address`: two vectors of partial sums, then a tree."""

    def codegen(context, builder, signature, args):
        e = Emitter(builder, "portable")
        start, count = args

        def body(i, sums):
            at = builder.add(start, builder.shl(i, e.i64(7)))
            values = [e.load(e.at(at, 64 * k), V16F32) for k in (0, 1)]
            return [e.fma(v, v, s) for v, s in zip(values, sums, strict=True)]

        sums = e.loop(count, [e.zero(V16F32)] * 2, body)
        return e.reduce(builder.fadd, builder.fadd(*sums), 16)

    return types.float32(types.int64, types.int64), codegen


@njit(nogil=True, cache=True)
def sum_squares(x):
    """Sum of squares of a contiguous float32 vector, float32, in an order that depends on its length only."""
    n_pairs = x.shape[0] // 32
    total = np.float32(0.0)
    if n_pairs:
        total = _sum_squares_main(x.ctypes.data, n_pairs)
    for i in range(n_pairs * 32, x.shape[0]):
        total += x[i] * x[i]
    return total
