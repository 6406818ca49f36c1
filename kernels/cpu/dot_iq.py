"""The non-linear 4-bit tables and scales that IQ4_NL, IQ4_XS and MXFP4 share. The row dots are in dot_legacy and
dot_k.
"""

from __future__ import annotations

from typing import Any

from kernels.cpu.vector_ir import F32, I32, Emitter, vec

IQ4_VALUES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
MXFP4_VALUES = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)  # twice the e2m1 numbers


def e8m0_half(e: Emitter, scales: Any) -> Any:
    """2^(byte - 128) as float32 for byte lanes: half of an e8m0 scale, since MXFP4_VALUES are doubled. Bytes 0 and 1
    give float32 subnormals.

    Bits: the exponent field of 2^(x - 128) is x - 1. For x = 0 and 1 the numbers are subnormal, 1 and 2 times
    0x00200000; (x + 1) times that is the larger integer there and nowhere else.
    """
    b, kind = e.b, vec(I32, scales.type.count)
    x = b.zext(scales, kind)
    normal = b.sub(b.shl(x, e.const(kind, 23)), e.const(kind, 1 << 23))
    subnormal = b.add(b.shl(x, e.const(kind, 21)), e.const(kind, 1 << 21))
    return b.bitcast(e.call("llvm.smax", kind, [normal, subnormal]), vec(F32, scales.type.count))
