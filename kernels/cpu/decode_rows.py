"""Rows of blocks as float32, straight from vector IR, for the types that embedding tables come in.

Exactly the numbers of `kernels.reference.dequant`, which serves the other types: products and sums are rounded in its
order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kernels.cpu.bit_fields import shifted
from kernels.cpu.native import address_of
from kernels.cpu.vector_ir import F32, I8, I32, Emitter, vec
from kernels.quant_types import QuantType, block_bytes, block_size

_V32I32, _V32F32 = vec(I32, 32), vec(F32, 32)


def _bytes(e: Emitter, address: Any) -> Any:
    """32 bytes as 32 int32 lanes, unsigned."""
    return e.b.zext(e.load(address, vec(I8, 32)), _V32I32)


def _byte(e: Emitter, address: Any, offset: int) -> Any:
    return e.b.zext(e.load(e.at(address, offset), I8), I32)


def _floats(e: Emitter, lanes: Any) -> Any:
    return e.b.sitofp(lanes, _V32F32)


def _emit_q8_0(e: Emitter, block: Any, out: Any) -> None:
    """Block: half d, int8 q[32]."""
    quants = e.b.sext(e.load(e.at(block, 2), vec(I8, 32)), _V32I32)
    e.store(e.b.fmul(e.splat(e.half(block), 32), _floats(e, quants)), out)


def _emit_q4_k(e: Emitter, block: Any, out: Any) -> None:
    """Block: half d, half dmin, 12 bytes of eight 6-bit scales and minima, 128 bytes q: 32 low nibbles, 32 high."""
    b = e.b
    d, d_min = e.half(block), e.half(e.at(block, 2))
    packed = [_byte(e, block, 4 + i) for i in range(12)]

    def six_bits(low: Any, shift: int, high: Any) -> Any:
        low = b.and_(b.lshr(low, e.i32(shift)), e.i32(15))
        return b.or_(low, b.and_(b.lshr(high, e.i32(2)), e.i32(48)))

    for i in range(8):
        if i < 4:
            scale, least = (b.and_(packed[n], e.i32(63)) for n in (i, i + 4))
        else:
            scale, least = six_bits(packed[i + 4], 0, packed[i - 4]), six_bits(packed[i + 4], 4, packed[i])
        quants = shifted(e, _bytes(e, e.at(block, 16 + 32 * (i // 2))), 4 * (i % 2), 15)
        scaled = b.fmul(e.splat(b.fmul(d, b.sitofp(scale, F32)), 32), _floats(e, quants))
        value = b.fsub(scaled, e.splat(b.fmul(d_min, b.sitofp(least, F32)), 32))
        e.store(value, e.at(out, 128 * i))


def _emit_q6_k(e: Emitter, block: Any, out: Any) -> None:
    """Block: 128 bytes of low nibbles, 64 bytes of upper bit pairs, int8 scales[16], half d."""
    b, d = e.b, e.half(e.at(block, 208))
    for i in range(8):
        half, group = i // 4, i % 4
        low = shifted(e, _bytes(e, e.at(block, 64 * half + 32 * (group % 2))), 4 * (group // 2), 15)
        high = shifted(e, _bytes(e, e.at(block, 128 + 32 * half)), 2 * group, 3)
        quants = b.sub(b.or_(low, b.shl(high, e.const(_V32I32, 4))), e.const(_V32I32, 32))
        scales = [
            b.fmul(d, b.sitofp(b.sext(e.load(e.at(block, 192 + 2 * i + k), I8), I32), F32)) for k in range(2)
        ]
        both = e.concat(e.splat(scales[0], 16), e.splat(scales[1], 16))
        e.store(b.fmul(both, _floats(e, quants)), e.at(out, 128 * i))


_BLOCKS: dict[QuantType, Callable[[Emitter, Any, Any], None]] = {
    QuantType.Q8_0: _emit_q8_0,
    QuantType.Q4_K: _emit_q4_k,
    QuantType.Q6_K: _emit_q6_k,
}
DECODED_TYPES = frozenset(_BLOCKS)


def decode_row_address(quant_type: QuantType) -> int:
    """Address of `void decode(row, out, n_blocks)`: the float32 of n_blocks >= 1 blocks. KeyError for other types than
    DECODED_TYPES.
    """
    emit_block = _BLOCKS[quant_type]

    def emit(e: Emitter, row: Any, out: Any, n_blocks: Any) -> None:
        def one(i: Any, _: list[Any]) -> list[Any]:
            block = e.b.add(row, e.b.mul(i, e.i64(block_bytes(quant_type))))
            emit_block(e, block, e.b.add(out, e.b.mul(i, e.i64(4 * block_size(quant_type)))))
            return []

        e.loop(n_blocks, [], one)

    return address_of(f"decode_row_{quant_type.name}", 3, emit)
