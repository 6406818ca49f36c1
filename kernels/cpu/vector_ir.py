"""LLVM vector IR, written once for every instruction set: what BasicEmitter has, and the few integer dot products and
lookups that differ.

A "group" is 32 consecutive weights: 32 byte lanes in, 8 int32 lanes out, where lane j is the sum of bytes 4j..4j+3 in
every instruction set. What a block's bytes mean is in dot_legacy, dot_k and dot_iq; compiling is in native.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import llvmlite.binding as llvm

from kernels.cpu.basic_ir import (
    F16,
    F32,
    I1,
    I8,
    I16,
    I32,
    I64,
    V8F32,
    V8I32,
    V16I16,
    V32I8,
    BasicEmitter,
    vec,
)
from kernels.cpu.features import host_features

__all__ = [
    "F16",
    "F32",
    "I1",
    "I8",
    "I16",
    "I32",
    "I64",
    "V8F32",
    "V8I32",
    "V16I16",
    "V32I8",
    "Emitter",
    "vec",
]

_VNNI = ("avx512vnni", "avxvnni")
# LLVM 22 took byte and word vectors as operands of the VNNI intrinsics, before they were int32 vectors
_VNNI_TAKES_BYTES = llvm.llvm_version_info[0] >= 22

_HAS_VBMI = host_features().get("avx512vbmi", False)

_AHEAD_BYTES, _AHEAD_LEVEL = 8192, 2
"""How far ahead row dots ask for weights, and into which cache. On a Zen 4, one thread: 5 to 11 per cent more than 4096
bytes ahead into the first cache, which were 5 to 10 more than the hardware's own prefetch (512 and 1024: less)."""


class Emitter(BasicEmitter):
    """A BasicEmitter with the integer dot products of its instruction set."""

    @property
    def groups_at_once(self) -> int:
        """Groups in one vector of `dot` and `lookup`: two with 512-bit vectors."""
        return 2 if self.isa == "avx512vnni" else 1

    @property
    def takes_any_bytes(self) -> bool:
        """Whether weights of `dot` that are not signed may be 128..255 too."""
        return self.isa in _VNNI

    @property
    def permutes_bytes(self) -> bool:
        """Whether one instruction picks bytes anywhere out of 512 bits (VBMI)."""
        return self.isa == "avx512vnni" and _HAS_VBMI

    def scratch_of(self, n_bytes: Any, shift: int = 0) -> Any:
        """Address of (n_bytes >> shift) bytes of stack, 64-byte aligned, else most 512-bit loads straddle cache lines;
        `n_bytes` is an argument of the function."""
        with self.b.goto_entry_block():
            room = self.b.alloca(I8, self.b.lshr(n_bytes, self.i64(shift)))
            room.align = 64
            return self.b.ptrtoint(room, I64)

    def prefetch_weights(self, start: Any, n_bytes: int) -> None:
        """Ask for what lies where row dots will be after some blocks more, `n_bytes` long like those at `start`."""
        for line in range(0, n_bytes, 64):
            self.prefetch(self.at(start, _AHEAD_BYTES + line), _AHEAD_LEVEL)

    # integer dot products of a group
    def dot(self, acc: Any, weights: Any, x: Any, signed: bool) -> Any:
        """acc + 4-sums of weights * x. `weights` are 0..127 (not signed) or -128..127 (signed), `x` is -127..127.

        Two groups at once where `groups_at_once` is 2.
        """
        if self.isa in _VNNI:
            weights, x = self._unsigned_by_sign(weights, x, signed)
            return self._vnni(f"llvm.x86.avx512.vpdpbusd.{8 * weights.type.count}", acc, weights, x)
        if self.isa == "avx2":
            weights, x = self._unsigned_by_sign(weights, x, signed)
            return self.b.add(acc, self.madd(self._maddubs(weights, x), self.const(V16I16, 1)))
        if self.isa == "neon":
            return self._sdot(acc, weights, x)
        return self.b.add(acc, self._portable_dot(weights, x))

    def scaled_dot(self, acc: Any, weights: Any, x: Any, scale: Any, signed: bool) -> Any:
        """acc + scale * 4-sums of weights * x; `scale` is 16 int16 lanes, lanes 2j and 2j+1 equal and belonging to
        4-sum j.

        Weights are 0..127 or -127..127: pair sums must fit an int16.
        """
        if self.isa in _VNNI:
            weights, x = self._unsigned_by_sign(weights, x, signed)
            return self._vnni("llvm.x86.avx512.vpdpwssd.256", acc, self._maddubs(weights, x), scale)
        if self.isa == "avx2":
            weights, x = self._unsigned_by_sign(weights, x, signed)
            return self.b.add(acc, self.madd(self._maddubs(weights, x), scale))
        sums = self.dot(self.zero(V8I32), weights, x, signed)
        return self.b.add(acc, self.b.mul(sums, self.b.sext(self.shuffle(scale, range(0, 16, 2)), V8I32)))

    def halves_apart(self, scales: Any) -> Any:
        """16 int16 sub-scales rearranged for `group_scale`: those of first halves of groups, then those of second
        halves.
        """
        return self.shuffle(scales, [*range(0, 16, 2), *range(1, 16, 2)])

    def group_scale(self, apart: Any, group: int) -> Any:
        """The `scale` of scaled_dot for one group: its first half's sub-scale in 8 lanes, its second half's in 8."""
        if self.isa in (*_VNNI, "avx2"):
            # one shuffle within 128-bit lanes; written as a plain one, LLVM goes through scalar registers
            index = self.const(V32I8, [2 * group, 2 * group + 1] * 16)
            return self.b.bitcast(self._pshufb(self.b.bitcast(apart, V32I8), index), V16I16)
        return self.shuffle(apart, [group] * 8 + [8 + group] * 8)

    def madd(self, x: Any, y: Any) -> Any:
        """int32 lane j = x[2j] * y[2j] + x[2j+1] * y[2j+1] of int16 lanes."""
        lanes = x.type.count
        if self.isa in (*_VNNI, "avx2") and lanes == 16:
            return self.call("llvm.x86.avx2.pmadd.wd", V8I32, [x, y])
        product = self.b.mul(self.b.sext(x, vec(I32, lanes)), self.b.sext(y, vec(I32, lanes)))
        return self.b.add(self.shuffle(product, range(0, lanes, 2)), self.shuffle(product, range(1, lanes, 2)))

    def lookup(self, table: Sequence[int], index: Any) -> Any:
        """table[index] for the byte lanes of one group or `groups_at_once`, 0..15; `table` has 16 entries."""
        if self.isa in (*_VNNI, "avx2"):
            return self._pshufb(self.const(index.type, list(table) * (index.type.count // 16)), index)
        if self.isa == "neon":
            half = [self.shuffle(index, range(16 * h, 16 * h + 16)) for h in (0, 1)]
            row = self.const(vec(I8, 16), list(table))
            found = [self.call("llvm.aarch64.neon.tbl1.v16i8", vec(I8, 16), [row, h]) for h in half]
            return self.concat(*found)
        found = self.const(V32I8, table[0])
        for i, value in enumerate(table[1:], 1):
            found = self.b.select(
                self.b.icmp_unsigned("==", index, self.const(V32I8, i)), self.const(V32I8, value), found
            )
        return found

    def lookup_of_low(self, table: Sequence[int], index: Any) -> Any:
        """table[index & 15] for 64 byte lanes, where `permutes_bytes`: that instruction reads 6 bits of an index."""
        return self.call("llvm.x86.avx512.permvar.qi.512", index.type, [self.const(index.type, [*table] * 4), index])

    def lookup_in_lanes(self, tables: Any, index: Any) -> Any:
        """table[index & 15] for 64 byte lanes, each 16 of which have a table of their own; bit 7 of an index is 0. For
        avx512vnni alone."""
        return self._pshufb(tables, index)

    def merged(self, mask: int, x: Any, y: Any) -> Any:
        """Bits `mask` of each byte from x and the others from y, 64 byte lanes, in one instruction; for avx512vnni
        alone."""
        words = vec(I32, 16)
        x, y = self.b.bitcast(x, words), self.b.bitcast(y, words)
        masks = self.const(words, mask * 0x01010101)
        choose = self.i32(0xCA)  # truth table: bits of the second operand where the first has ones
        found = self.call("llvm.x86.avx512.pternlog.d.512", words, [masks, x, y, choose])
        return self.b.bitcast(found, vec(I8, 64))

    def _pshufb(self, value: Any, index: Any) -> Any:
        name = "llvm.x86.avx2.pshuf.b" if value.type.count == 32 else "llvm.x86.avx512.pshuf.b.512"
        return self.call(name, value.type, [value, index])

    def _vnni(self, name: str, acc: Any, x: Any, y: Any) -> Any:
        if not _VNNI_TAKES_BYTES:
            x, y = self.b.bitcast(x, acc.type), self.b.bitcast(y, acc.type)
        return self.call(name, acc.type, [acc, x, y])

    def _unsigned_by_sign(self, weights: Any, x: Any, signed: bool) -> tuple[Any, Any]:
        """(|w|, x * sign(w)): the same products with an unsigned left side."""
        if not signed:
            return weights, x
        b, zero = self.b, self.zero(weights.type)
        is_negative = b.icmp_signed("<", weights, zero)
        magnitude = b.select(is_negative, b.sub(zero, weights), weights)
        if weights.type.count > 32:  # there is no 512-bit vpsignb; where a weight is 0 the product is 0 anyhow
            return magnitude, b.select(is_negative, b.sub(zero, x), x)
        return magnitude, self.call("llvm.x86.avx2.psign.b", V32I8, [x, weights])

    def _maddubs(self, weights: Any, x: Any) -> Any:
        return self.call("llvm.x86.avx2.pmadd.ub.sw", V16I16, [weights, x])

    def _sdot(self, acc: Any, weights: Any, x: Any) -> Any:
        kind, halves = vec(I32, 4), []
        for h in (0, 1):
            a = self.shuffle(acc, range(4 * h, 4 * h + 4))
            w, y = (self.shuffle(v, range(16 * h, 16 * h + 16)) for v in (weights, x))
            halves.append(self.call("llvm.aarch64.neon.sdot.v4i32.v16i8", kind, [a, w, y]))
        return self.concat(*halves)

    def _portable_dot(self, weights: Any, x: Any) -> Any:
        wide = vec(I16, 32)
        product = self.b.sext(self.b.mul(self.b.sext(weights, wide), self.b.sext(x, wide)), vec(I32, 32))
        parts = [self.shuffle(product, range(k, 32, 4)) for k in range(4)]
        return self.b.add(self.b.add(parts[0], parts[1]), self.b.add(parts[2], parts[3]))
