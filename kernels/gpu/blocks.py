"""Decode GGUF blocks inside a kernel: the one place where Triton code knows block layouts.

A row is read as *lanes*. A lane is the widest word that the block layout keeps aligned, and holds a fixed number of
weights, its *slots*; every step below is elementwise over lanes, so nothing is exchanged between threads:

| type        | block bytes | lane                         | slots | column of (lane i, slot s)                        |
|-------------|-------------|------------------------------|-------|---------------------------------------------------|
| F32         | 4           | 32-bit float                 | 1     | i                                                 |
| F16, BF16   | 2           | 16-bit float                 | 1     | i                                                 |
| Q8_0        | 34          | 16 bits, 2 numbers           | 2     | 2 i + s                                           |
| Q4_0,IQ4_NL | 18          | 16 bits, 4 nibbles           | 4     | 32 (i / 8) + 16 (s & 1) + 2 (i % 8) + (s >> 1)    |
| MXFP4       | 17          | 8 bits, 2 nibbles            | 2     | 32 (i / 16) + 16 s + i % 16                       |
| Q4_K, Q5_K  | 144, 176    | 32 bits (+ 32 high bits)     | 8     | 64 (i / 8) + 32 (s & 1) + 4 (i % 8) + (s >> 1)    |
| Q6_K        | 210         | 2 x 16 bits (+ 16 high bits) | 8     | 128 (i / 16) + 32 (s & 3) + 2 (i % 16) + (s >> 2) |

Blocks of 34, 18, 17 and 210 bytes do not keep 32-bit words aligned. A matrix must begin on the lane's own alignment
(16 bytes for Q4_K and Q5_K). What blocks mean is defined by `kernels.reference.dequant`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.quant_types import QuantType

F32 = tl.constexpr(int(QuantType.F32))
F16 = tl.constexpr(int(QuantType.F16))
BF16 = tl.constexpr(int(QuantType.BF16))
Q8_0 = tl.constexpr(int(QuantType.Q8_0))
Q4_0 = tl.constexpr(int(QuantType.Q4_0))
Q4_K = tl.constexpr(int(QuantType.Q4_K))
Q5_K = tl.constexpr(int(QuantType.Q5_K))
Q6_K = tl.constexpr(int(QuantType.Q6_K))
IQ4_NL = tl.constexpr(int(QuantType.IQ4_NL))
MXFP4 = tl.constexpr(int(QuantType.MXFP4))


@triton.jit
def column(i, slot: tl.constexpr, TYPE: tl.constexpr):
    """The column of the weight that lane `i` (int32 tensor) holds in `slot`, see the table above."""
    if TYPE == Q8_0:
        return 2 * i + slot
    elif TYPE == Q4_0 or TYPE == IQ4_NL:
        return (i // 8) * 32 + (slot & 1) * 16 + (i % 8) * 2 + (slot >> 1)
    elif TYPE == MXFP4:
        return (i // 16) * 32 + slot * 16 + i % 16
    elif TYPE == Q4_K or TYPE == Q5_K:
        return (i // 8) * 64 + (slot & 1) * 32 + (i % 8) * 4 + (slot >> 1)
    elif TYPE == Q6_K:
        return (i // 16) * 128 + (slot & 3) * 32 + (i % 16) * 2 + (slot >> 2)
    else:
        return i


@triton.jit
def _u8(ptr, mask):
    return tl.load(ptr, mask=mask, other=0).to(tl.uint32)


@triton.jit
def _u16(ptr, mask):
    return tl.load(ptr.to(tl.pointer_type(tl.uint16)), mask=mask, other=0).to(tl.uint32)


@triton.jit
def _u32(ptr, mask):
    return tl.load(ptr.to(tl.pointer_type(tl.uint32)), mask=mask, other=0)


@triton.jit
def _half(ptr, mask):
    return tl.load(ptr.to(tl.pointer_type(tl.float16)), mask=mask, other=0.0).to(tl.float32)


@triton.jit
def _half_bits(bits):
    return bits.to(tl.uint16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def _scales_k(block, group, mask):
    """(scale, minimum) of `group` 0..7 of a Q4_K or Q5_K block at `block`, float32: the halves d and dmin times 6-bit
    integers, of which 4..7 keep their upper two bits above those of 0..3.
    """
    halves = _u32(block, mask)
    shift = (group % 4) * 8
    low = _u32(block + 4, mask) >> shift
    minimum = _u32(block + 8, mask) >> shift
    high = _u32(block + 12, mask) >> shift
    first = group < 4
    scale = tl.where(first, low & 63, (high & 15) | ((low >> 2) & 48))
    offset = tl.where(first, minimum & 63, ((high >> 4) & 15) | ((minimum >> 2) & 48))
    return _half_bits(halves & 0xFFFF) * scale.to(tl.float32), _half_bits(halves >> 16) * offset.to(tl.float32)


@triton.jit
def _signed_scale(ptr, mask):
    return tl.load(ptr.to(tl.pointer_type(tl.int8)), mask=mask, other=0).to(tl.float32)


@triton.jit
def _e8m0_half(e):
    """2^(e - 128), the scale of an MXFP4 block whose values are kept doubled; e uint32 0..254."""
    return tl.where(e < 2, 0x00200000 << e, (e - 1) << 23).to(tl.float32, bitcast=True)


@triton.jit
def load_lanes(row, i, mask, TYPE: tl.constexpr):
    """The words and scales of lanes `i` of rows that begin at `row` (uint8 pointers), as a tuple for `lane_weight`.

    Masked lanes read nothing and weigh 0.
    """
    if TYPE == F32:
        return (tl.load(row.to(tl.pointer_type(tl.float32)) + i, mask=mask, other=0.0),)
    elif TYPE == F16:
        return (_half(row + i * 2, mask),)
    elif TYPE == BF16:
        return ((_u16(row + i * 2, mask) << 16).to(tl.float32, bitcast=True),)
    elif TYPE == Q8_0:
        block = row + (i // 16) * 34
        return (_u16(block + 2 + (i % 16) * 2, mask), _half(block, mask))
    elif TYPE == Q4_0 or TYPE == IQ4_NL:
        block = row + (i // 8) * 18
        return (_u16(block + 2 + (i % 8) * 2, mask), _half(block, mask))
    elif TYPE == MXFP4:
        block = row + (i // 16) * 17
        return (_u8(block + 1 + i % 16, mask), tl.where(mask, _e8m0_half(_u8(block, mask)), 0.0))
    elif TYPE == Q4_K:
        block = row + (i // 32) * 144
        group = (i % 32) // 8 * 2
        scale0, min0 = _scales_k(block, group, mask)
        scale1, min1 = _scales_k(block, group + 1, mask)
        return (_u32(block + 16 + (i % 32) * 4, mask), scale0, min0, scale1, min1)
    elif TYPE == Q5_K:
        block = row + (i // 32) * 176
        group = (i % 32) // 8 * 2
        scale0, min0 = _scales_k(block, group, mask)
        scale1, min1 = _scales_k(block, group + 1, mask)
        high = _u32(block + 16 + (i % 8) * 4, mask) >> group.to(tl.uint32)
        return (_u32(block + 48 + (i % 32) * 4, mask), scale0, min0, scale1, min1, high)
    elif TYPE == Q6_K:
        block = row + (i // 32) * 210
        half, place = (i % 32) // 16, (i % 16) * 2
        low = _u16(block + half * 64 + place, mask) | (_u16(block + half * 64 + 32 + place, mask) << 16)
        d = _half(block + 208, mask)
        scales = block + 192 + half * 8 + place // 16
        return (
            low, _u16(block + 128 + half * 32 + place, mask),
            d * _signed_scale(scales, mask), d * _signed_scale(scales + 2, mask),
            d * _signed_scale(scales + 4, mask), d * _signed_scale(scales + 6, mask),
        )  # fmt: skip
    else:
        tl.static_assert(False, "no block decoder for this quant type")


@triton.jit
def _iq4_value(q):
    """kvalues_iq4nl[q] + 128 from four packed words, then less 128; q uint32 0..15."""
    low = tl.where(q < 4, 0x3F2D1801, 0x766A5D4F)
    high = tl.where(q < 12, 0xA6998D81, 0xF1D9C5B5)
    word = tl.where(q < 8, low.to(tl.uint32), high.to(tl.uint32))
    return ((word >> ((q & 3) * 8)) & 255).to(tl.float32) - 128.0


@triton.jit
def _fp4_value(q):
    """Twice the e2m1 number of q, uint32 0..15: 0 1 2 3 4 6 8 12 and their negatives."""
    exponent, mantissa = (q >> 1) & 3, q & 1
    size = tl.where(exponent == 0, mantissa, (2 + mantissa) << (tl.where(exponent == 0, 1, exponent) - 1))
    size = size.to(tl.int32)
    return tl.where((q & 8) != 0, -size, size).to(tl.float32)


@triton.jit
def lane_weight(lanes, slot: tl.constexpr, TYPE: tl.constexpr):
    """The weights that `lanes` of `load_lanes` hold in `slot`, float32 of the lanes' shape."""
    if TYPE == Q8_0:
        signed = (lanes[0] << (24 - 8 * slot)).to(tl.int32, bitcast=True) >> 24
        return signed.to(tl.float32) * lanes[1]
    elif TYPE == Q4_0:
        q = (lanes[0] >> (8 * (slot >> 1) + 4 * (slot & 1))) & 15
        return (q.to(tl.float32) - 8.0) * lanes[1]
    elif TYPE == IQ4_NL:
        return _iq4_value((lanes[0] >> (8 * (slot >> 1) + 4 * (slot & 1))) & 15) * lanes[1]
    elif TYPE == MXFP4:
        return _fp4_value((lanes[0] >> (4 * slot)) & 15) * lanes[1]
    elif TYPE == Q4_K:
        q = (lanes[0] >> (8 * (slot >> 1) + 4 * (slot & 1))) & 15
        return q.to(tl.float32) * lanes[1 + 2 * (slot & 1)] - lanes[2 + 2 * (slot & 1)]
    elif TYPE == Q5_K:
        q = (lanes[0] >> (8 * (slot >> 1) + 4 * (slot & 1))) & 15
        q |= ((lanes[5] >> (8 * (slot >> 1) + (slot & 1))) & 1) << 4
        return q.to(tl.float32) * lanes[1 + 2 * (slot & 1)] - lanes[2 + 2 * (slot & 1)]
    elif TYPE == Q6_K:
        # slot & 3 is the quarter of 32 columns: its nibble lies in word slot & 1, upper half of the byte from 2 on.
        q = (lanes[0] >> (16 * (slot & 1) + 8 * (slot >> 2) + 4 * ((slot & 3) >> 1))) & 15
        q |= ((lanes[1] >> (8 * (slot >> 2) + 2 * (slot & 3))) & 3) << 4
        return (q.to(tl.float32) - 32.0) * lanes[2 + (slot & 3)]
    else:
        return lanes[0]
