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

    Bits: the exponent field of 2^(x - 128) is x - 1; for x < 2 it is the subnormal 2^-128 = 0x00200000 shifted left
    by x.
    """
    b, kind = e.b, vec(I32, scales.type.count)
    x = b.zext(scales, kind)
    normal = b.shl(b.sub(x, e.const(kind, 1)), e.const(kind, 23))
    subnormal = b.shl(e.const(kind, 0x00200000), b.and_(x, e.const(kind, 1)))
    bits = b.select(b.icmp_unsigned("<", x, e.const(kind, 2)), subnormal, normal)
    return b.bitcast(bits, vec(F32, scales.type.count))
