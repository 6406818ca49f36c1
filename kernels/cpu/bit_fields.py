"""Bit fields of integer lanes, as vector IR: (value >> shift) & mask, with one instruction for bytes where there is
GFNI.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from kernels.cpu.features import host_features
from kernels.cpu.vector_ir import I8, Emitter

_X86 = ("avx512vnni", "avxvnni", "avx2")
_HAS_GFNI = host_features().get("gfni", False)


def shifted(e: Emitter, value: Any, shift: int, mask: int) -> Any:
    """(value >> shift) & mask, lane by lane; a negative shift goes left."""
    b = e.b
    if shift == 0:
        return b.and_(value, e.const(value.type, mask))
    if value.type.element == I8 and _HAS_GFNI and e.isa in _X86 and value.type.count >= 16:
        return _affine(e, value, shift, mask)
    amount = e.const(value.type, abs(shift))
    return b.and_(b.lshr(value, amount) if shift > 0 else b.shl(value, amount), e.const(value.type, mask))


def _affine(e: Emitter, value: Any, shift: int, mask: int) -> Any:
    """Each byte times a matrix of bits: bit i of a result is the parity of the byte and matrix byte 7 - i, which here
    is bit i + shift alone, or none."""
    kind = value.type
    rows = [0] * 8
    for i in range(8):
        if mask >> i & 1 and 0 <= i + shift < 8:
            rows[7 - i] = 1 << (i + shift)
    matrix = e.const(kind, rows * (kind.count // 8))
    name, module = f"llvm.x86.vgf2p8affineqb.{8 * kind.count}", e.b.module
    function = module.globals.get(name)
    if function is None:
        function = ir.Function(module, ir.FunctionType(kind, [kind, kind, I8]), name)
    return e.b.call(function, [value, matrix, ir.Constant(I8, 0)])
