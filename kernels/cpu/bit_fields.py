"""Bit fields of integer lanes, as vector IR: (value >> shift) & mask, and bytes whose bits are any parities of bits;
with one instruction for bytes where there is GFNI.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir

from kernels.cpu.features import host_features
from kernels.cpu.vector_ir import I8, Emitter

_X86 = ("avx512vnni", "avxvnni", "avx2")
_HAS_GFNI = host_features().get("gfni", False)


def shifted(e: Emitter, value: Any, shift: int, mask: int, plus: int = 0) -> Any:
    """((value >> shift) & mask) | plus, lane by lane; a negative shift goes left. `plus` shares no bit with `mask`."""
    b = e.b
    if shift and _has_parities(e, value):
        bits = [1 << (i + shift) if mask >> i & 1 and 0 <= i + shift < 8 else 0 for i in range(8)]
        return _affine(e, value, [bits], plus)
    amount = e.const(value.type, abs(shift))
    moved = value if shift == 0 else b.lshr(value, amount) if shift > 0 else b.shl(value, amount)
    found = b.and_(moved, e.const(value.type, mask))
    return b.or_(found, e.const(value.type, plus)) if plus else found


def parities(e: Emitter, value: Any, rows: Sequence[Sequence[int]], plus: int = 0) -> Any:
    """Bytes whose bit i is bit i of `plus`, turned round where an odd number of the bits row[i] of the byte are set.
    rows[k] is the row of bytes 8 k .. 8 k + 7; after the last comes the first again.
    """
    if _has_parities(e, value):
        return _affine(e, value, rows, plus)
    b, kind = e.b, value.type
    of_lanes = [rows[lane // 8 % len(rows)] for lane in range(kind.count)]
    found = e.const(kind, plus)
    for shift in range(-7, 8):
        masks = [sum(1 << i for i, bits in enumerate(row) if bits << 8 >> i + shift + 8 & 1) for row in of_lanes]
        if any(masks):
            amount = e.const(kind, abs(shift))
            moved = b.lshr(value, amount) if shift >= 0 else b.shl(value, amount)
            found = b.xor(found, b.and_(moved, e.const(kind, masks)))
    return found


def _has_parities(e: Emitter, value: Any) -> bool:
    return value.type.element == I8 and _HAS_GFNI and e.isa in _X86 and value.type.count >= 16


def has_bit_masks(e: Emitter) -> bool:
    """Whether `bit_masks` can be had."""
    return _HAS_GFNI and e.isa in _X86


def bit_masks(e: Emitter, value: Any) -> Any:
    """Byte i of each 8, which are equal, becomes -1 where its bit i is set, else 0: bytes 1 << i times a matrix that
    has that byte in every row."""
    bits = e.const(value.type, [1 << i for i in range(8)] * (value.type.count // 8))
    return _product(e, bits, value, 0)


def _affine(e: Emitter, value: Any, rows: Sequence[Sequence[int]], plus: int) -> Any:
    """`parities` by GFNI: each 8 bytes times 8 bytes of matrix, whose byte 7 - i is row[i]."""
    kind = value.type
    matrix = []
    for k in range(kind.count // 8):
        row = [*rows[k % len(rows)], *[0] * 8][:8]
        matrix += row[::-1]
    return _product(e, value, e.const(kind, matrix), plus)


def _product(e: Emitter, value: Any, matrix: Any, plus: int) -> Any:
    kind, module = value.type, e.b.module
    name = f"llvm.x86.vgf2p8affineqb.{8 * kind.count}"
    function = module.globals.get(name)
    if function is None:
        function = ir.Function(module, ir.FunctionType(kind, [kind, kind, I8]), name)
    return e.b.call(function, [value, matrix, ir.Constant(I8, plus)])
