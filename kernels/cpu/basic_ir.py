"""LLVM vector IR that is the same for every instruction set: types, lanes, memory and loops.

No fast-math flag is ever set: a kernel's rounding is the order written in it. Integer dot products are in vector_ir.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir

I1, I8, I16, I32, I64 = (ir.IntType(n) for n in (1, 8, 16, 32, 64))
F16, F32 = ir.HalfType(), ir.FloatType()


def vec(element: Any, lanes: int) -> ir.VectorType:
    return ir.VectorType(element, lanes)


V32I8, V16I16, V8I32, V8F32 = vec(I8, 32), vec(I16, 16), vec(I32, 8), vec(F32, 8)


class BasicEmitter:
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
