"""The row dot of IQ4_XS where a dot takes any unsigned bytes and 512-bit vectors: elsewhere that of dot_k_staged.

    w = d * sub-scale[g] * table[nibble]    d f16 @0, high scale bits u16 @2, low scale nibbles [4] @4, nibbles [128] @8
The table's entries are taken 128 higher, since signs cost a dot more than the sums of activations that go off again.
Headers of four super-blocks are unpacked together into floats on the stack, as in dot_k_staged.
"""

from __future__ import annotations

from typing import Any

from kernels.cpu import dot_k_staged
from kernels.cpu.dot_iq import IQ4_VALUES
from kernels.cpu.dot_k_staged import WIDTH, iq4_xs_header
from kernels.cpu.halves import by_halves, dot_of_halves
from kernels.cpu.vector_ir import F32, I8, I16, I32, Emitter, vec
from kernels.quant_types import QuantType, block_bytes

_SIZE = block_bytes(QuantType.IQ4_XS)
_GROUPS = 8
_OFFSET = 128
_TABLE = tuple(value + _OFFSET for value in IQ4_VALUES)
_V16F32 = vec(F32, 16)


def arranged(e: Emitter, quant_type: QuantType, n_cols: Any, record: Any) -> Any:
    """What `row_dot` takes for a q8_256 record: (record, address of its int8 by halves or None)."""
    return record, by_halves(e, n_cols, record) if e.isa == "avx512vnni" else None


def row_dot(e: Emitter, quant_type: QuantType, row: Any, n_cols: Any, record: Any) -> Any:
    """Float32 dot of the row at address `row` with one q8_256 record, `arranged`."""
    record, halves = record
    if halves is None:
        return dot_k_staged.row_dot(e, quant_type, row, n_cols, record)
    b, n_blocks = e.b, e.b.lshr(n_cols, e.i64(8))
    d_base = b.add(b.add(record, n_cols), b.lshr(n_cols, e.i64(3)))
    pair_base = b.add(d_base, b.lshr(n_cols, e.i64(6)))
    stage = e.scratch(4 * _GROUPS * WIDTH)

    def step(i: Any, sums: list[Any]) -> list[Any]:
        first = b.mul(i, e.i64(WIDTH))
        left = b.sub(n_blocks, first)
        n = b.select(b.icmp_signed("<", left, e.i64(WIDTH)), left, e.i64(WIDTH))
        start, x_start = b.add(row, b.mul(first, e.i64(_SIZE))), b.add(halves, b.shl(first, e.i64(8)))
        dx = e.load(b.add(d_base, b.shl(first, e.i64(2))), vec(F32, WIDTH), 4)
        pairs = b.add(pair_base, b.shl(first, e.i64(4)))
        sums[2] = _unpack(e, start, n, dx, pairs, stage, sums[2])
        e.barrier()

        def block(k: Any, carried: list[Any]) -> list[Any]:
            p, x = b.add(start, b.mul(k, e.i64(_SIZE))), b.add(x_start, b.shl(k, e.i64(8)))
            e.prefetch_weights(p, _SIZE)
            for half in (0, 1):
                packed = e.load(e.at(p, 8 + 64 * half), vec(I8, 64))
                found = b.sitofp(dot_of_halves(e, packed, e.at(x, 128 * half), _TABLE, False), _V16F32)
                scales = e.load(e.at(b.add(stage, b.shl(k, e.i64(5))), 16 * half), vec(F32, 4), 4)
                carried[half] = e.fma(found, e.shuffle(scales, [lane // 4 for lane in range(16)]), carried[half])
            return carried

        sums[:2] = e.loop(n, sums[:2], block)
        e.barrier()
        return sums

    n_steps = b.lshr(b.add(n_blocks, e.i64(WIDTH - 1)), e.i64(WIDTH.bit_length() - 1))
    *products, low = e.loop(n_steps, [e.zero(_V16F32)] * 3, step)
    total = e.fma(low, e.splat(e.f32(-float(_OFFSET)), 16), b.fadd(*products))
    return e.reduce(b.fadd, total, 16)


def _unpack(e: Emitter, start: Any, n: Any, dx: Any, pairs: Any, stage: Any, low: Any) -> Any:
    """Stage d * dx * sub-scale of the n <= WIDTH super-blocks from `start` on as float32; returns `low` plus those
    times the sums of 32 activations at `pairs`. Of fewer, the last one's header stands for the missing, worth 0."""
    b, last = e.b, e.b.sub(n, e.i64(1))
    places = [e.i64(0)]
    for k in range(1, WIDTH):
        places.append(b.select(b.icmp_signed("<", last, e.i64(k)), last, e.i64(k)))
    header = iq4_xs_header(e, [b.add(start, b.mul(place, e.i64(_SIZE))) for place in places])
    d = b.fmul(b.fpext(header.halves, vec(F32, WIDTH)), dx)
    there = b.icmp_unsigned("<", e.const(vec(I32, WIDTH), list(range(WIDTH))), e.splat(b.trunc(n, I32), WIDTH))
    d = b.select(there, d, e.zero(d.type))
    for part in range(_GROUPS * WIDTH // 16):
        lanes = range(16 * part, 16 * part + 16)
        scales = b.sitofp(b.sext(e.shuffle(header.scales, lanes), vec(I32, 16)), _V16F32)
        scales = b.fmul(scales, e.shuffle(d, [lane // _GROUPS for lane in lanes]))
        e.store(scales, e.at(stage, 64 * part), 4)
        sums = b.sext(e.load(e.at(pairs, 32 * part), vec(I16, 16), 2), vec(I32, 16))
        low = e.fma(scales, b.sitofp(sums, _V16F32), low)
    return low
