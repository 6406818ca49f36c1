"""LLVM vector IR, written once for every instruction set: loads, lanes, loops, and the few integer dot products that
differ.

`Emitter` wraps an llvmlite builder. A "group" is 32 consecutive weights: 32 byte lanes in, 8 int32 lanes out, where
lane j is the sum of bytes 4j..4j+3 in every instruction set. No fast-math flag is ever set: a kernel's rounding is
the order written in it. What a block's bytes mean is in dot_legacy, dot_k and dot_iq; compiling is in native.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir

I1, I8, I16, I32, I64 = (ir.IntType(n) for n in (1, 8, 16, 32, 64))
F16, F32 = ir.HalfType(), ir.FloatType()
_VNNI = ("avx512vnni", "avxvnni")
# LLVM 22 took byte and word vectors as operands of the VNNI intrinsics, before they were int32 vectors
_VNNI_TAKES_BYTES = llvm.llvm_version_info[0] >= 22


def vec(element: Any, lanes: int) -> ir.VectorType:
    return ir.VectorType(element, lanes)


PREFETCH_BYTES = 4096
"""How far ahead row dots ask for weights: 5 to 10 per cent faster than the hardware's own prefetch on a Zen 4 (512
and 1024 were slower than none)."""

V32I8, V16I16, V8I32, V8F32 = vec(I8, 32), vec(I16, 16), vec(I32, 8), vec(F32, 8)


class Emitter:
    """Emits into `builder`'s current block for instruction set `isa` (a name of features.ISAS)."""

    def __init__(self, builder: ir.IRBuilder, isa: str) -> None:
        self.b = builder
        self.isa = isa

    # constants and lanes
    def i64(self, value: int) -> ir.Constant:
        return ir.Constant(I64, value)

    def i32(self, value: int) -> ir.Constant:
        return ir.Constant(I32, value)

    def f32(self, value: float) -> ir.Constant:
        return ir.Constant(F32, value)

    def zero(self, kind: Any) -> ir.Constant:
        return ir.Constant(kind, None)

    def const(self, kind: ir.VectorType, values: int | Sequence[int]) -> ir.Constant:
        """A constant vector from one value for all lanes, or one value a lane."""
        lanes = [values] * kind.count if isinstance(values, int) else list(values)
        return ir.Constant(kind, lanes)

    def splat(self, scalar: Any, lanes: int) -> Any:
        kind = vec(scalar.type, lanes)
        first = self.b.insert_element(ir.Constant(kind, ir.Undefined), scalar, self.i32(0))
        return self.shuffle(first, [0] * lanes)

    def shuffle(self, value: Any, lanes: Sequence[int], other: Any = None) -> Any:
        second = ir.Constant(value.type, ir.Undefined) if other is None else other
        return self.b.shuffle_vector(value, second, ir.Constant(vec(I32, len(lanes)), list(lanes)))

    def widened(self, value: Any, lanes: int) -> Any:
        """`value` with zeros behind it up to `lanes`."""
        if value.type.count == lanes:
            return value
        zeros = [value.type.count] * (lanes - value.type.count)
        return self.shuffle(value, [*range(value.type.count), *zeros], self.zero(value.type))

    def concat(self, low: Any, high: Any) -> Any:
        return self.shuffle(low, range(2 * low.type.count), high)

    def joined(self, parts: Sequence[Any]) -> Any:
        """Vectors of one type, one behind the other; their number is a power of two."""
        while len(parts) > 1:
            parts = [self.concat(parts[i], parts[i + 1]) for i in range(0, len(parts), 2)]
        return parts[0]

    def lane(self, value: Any, index: int) -> Any:
        return self.b.extract_element(value, self.i32(index))

    def reduce(self, op: Callable[[Any, Any], Any], value: Any, lanes: int) -> Any:
        """Fold halves onto each other until one lane is left: a fixed order."""
        while lanes > 1:
            lanes //= 2
            value = op(self.shuffle(value, range(lanes)), self.shuffle(value, range(lanes, 2 * lanes)))
        return self.lane(value, 0)

    # memory
    def at(self, address: Any, offset: int) -> Any:
        return self.b.add(address, self.i64(offset)) if offset else address

    def load(self, address: Any, kind: Any, align: int = 1) -> Any:
        value = self.b.load(self.b.inttoptr(address, kind.as_pointer()))
        value.align = align
        return value

    def store(self, value: Any, address: Any, align: int = 1) -> None:
        self.b.store(value, self.b.inttoptr(address, value.type.as_pointer())).align = align

    def half(self, address: Any) -> Any:
        """The float16 at `address` as float32."""
        return self.b.fpext(self.load(address, F16, 1), F32)

    def prefetch(self, address: Any, level: int = 1) -> None:
        """Hint that the cache line at `address` will be read soon, into the cache of `level`; an address past the end
        of the data is harmless."""
        pointer = self.b.inttoptr(address, I8.as_pointer())
        kind = ir.FunctionType(ir.VoidType(), [I8.as_pointer(), I32, I32, I32])
        function = self.b.module.globals.get("llvm.prefetch.p0") or ir.Function(self.b.module, kind, "llvm.prefetch.p0")
        self.b.call(function, [pointer, self.i32(0), self.i32(4 - level), self.i32(1)])

    def scratch(self, n_bytes: int) -> Any:
        """Address of n_bytes of stack, 64-byte aligned, that this function keeps until it returns."""
        with self.b.goto_entry_block():
            place = self.b.alloca(ir.ArrayType(I8, n_bytes))
            place.align = 64
            return self.b.ptrtoint(place, I64)

    def barrier(self) -> None:
        """Later loads come from memory: LLVM may not replace them by shuffles of what was stored before."""
        self.b.asm(ir.FunctionType(ir.VoidType(), []), "", "~{memory}", [], True)

    # control
    def loop(
        self, count: Any, carried: Sequence[Any], body: Callable[[Any, list[Any]], list[Any]], first: Any = None
    ) -> list[Any]:
        """Run body(i, values) for i = first (0).. count-1, at least once, threading `carried` through; returns the
        last values.
        """
        b, before = self.b, self.b.block
        block = b.append_basic_block()
        b.branch(block)
        b.position_at_end(block)
        index = b.phi(I64)
        index.add_incoming(self.i64(0) if first is None else first, before)
        phis = [b.phi(value.type) for value in carried]
        for phi, value in zip(phis, carried, strict=True):
            phi.add_incoming(value, before)
        results = body(index, list(phis))
        following = b.add(index, self.i64(1))
        index.add_incoming(following, b.block)
        for phi, value in zip(phis, results, strict=True):
            phi.add_incoming(value, b.block)
        after = b.append_basic_block()
        b.cbranch(b.icmp_signed("<", following, count), block, after)
        b.position_at_end(after)
        return results

    def loop_or_skip(
        self, count: Any, carried: Sequence[Any], body: Callable[[Any, list[Any]], list[Any]], first: Any = None
    ) -> list[Any]:
        """`loop` that runs not at all, and returns `carried`, where first >= count."""
        b, before = self.b, self.b.block
        inside, after = b.append_basic_block(), b.append_basic_block()
        b.cbranch(b.icmp_signed("<", self.i64(0) if first is None else first, count), inside, after)
        b.position_at_end(inside)
        values = self.loop(count, carried, body, first)
        last = b.block
        b.branch(after)
        b.position_at_end(after)
        merged = []
        for value, other in zip(values, carried, strict=True):
            phi = b.phi(value.type)
            phi.add_incoming(value, last)
            phi.add_incoming(other, before)
            merged.append(phi)
        return merged

    def call(self, name: str, result: Any, arguments: Sequence[Any]) -> Any:
        """Call an LLVM intrinsic; the overloads that take one type suffix (llvm.fma and the like) get it appended."""
        if not name.startswith(("llvm.x86", "llvm.aarch64")):
            name += (
                f".v{result.count}{result.element.intrinsic_name}"
                if isinstance(result, ir.VectorType)
                else (f".{result.intrinsic_name}")
            )
        module = self.b.module
        function = module.globals.get(name)
        if function is None:
            function = ir.Function(module, ir.FunctionType(result, [a.type for a in arguments]), name)
        return self.b.call(function, arguments)

    def fma(self, x: Any, y: Any, z: Any) -> Any:
        return self.call("llvm.fma", x.type, [x, y, z])

    @property
    def groups_at_once(self) -> int:
        """Groups in one vector of `dot` and `lookup`: two with 512-bit vectors."""
        return 2 if self.isa == "avx512vnni" else 1

    @property
    def takes_any_bytes(self) -> bool:
        """Whether weights of `dot` that are not signed may be 128..255 too."""
        return self.isa in _VNNI

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
