"""Products of one weight tile (see matmul_tile) with many tokens' activation records (see quantize_activations).

    void dots(tile, n_rows, n_cols, n_tokens, x_rows, out_rows, column_bytes)
x_rows, out_rows: int64 arrays of addresses, one a token; out_rows[t] + column_bytes receives n_rows float32. Tokens go
through in groups whose sums stay in registers; each (row, token) sum has one order, so it depends neither on the
group's width nor on its other members.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir

from kernels.cpu import dot_k
from kernels.cpu.dot_float import FLOAT_TYPES
from kernels.cpu.matmul_tile import (
    SCALE_PER_32,
    has_minima,
    is_biased,
    lanes_of,
    scale_panels,
    tile_block_bytes,
)
from kernels.cpu.vector_ir import F32, I1, I8, I16, I32, I64, Emitter, vec
from kernels.quant_types import QuantType

N_DOTS_ARGUMENTS = 7
# LLVM 22 took byte and word vectors as operands of the VNNI intrinsics, before they were int32 vectors
_VNNI_TAKES_BYTES = llvm.llvm_version_info[0] >= 22


def tokens_of(isa: str) -> int:
    """Tokens of a full group: two sums for each stay in the 32 registers of AVX512, or in the 16 of others."""
    return 8 if isa == "avx512vnni" else 4


def _vnni_512(e: Emitter, name: str, acc: Any, x: Any, y: Any, operand: Any) -> Any:
    kind = operand if _VNNI_TAKES_BYTES else acc.type
    return e.call(f"llvm.x86.avx512.{name}.512", acc.type, [acc, e.b.bitcast(x, kind), e.b.bitcast(y, kind)])


def _dot_bytes(e: Emitter, acc: Any, weights: Any, x_word: Any, signed: bool) -> Any:
    """acc + sums of 4 byte products; `weights` [lanes] words of 4 bytes, `x_word` the token's 4 bytes."""
    lanes = acc.type.count
    x = e.splat(x_word, lanes)
    if lanes == 16:
        return _vnni_512(e, "vpdpbusd", acc, weights, x, vec(I8, 64))
    return e.dot(acc, e.b.bitcast(weights, vec(I8, 32)), e.b.bitcast(x, vec(I8, 32)), signed)


def _dot_halves(e: Emitter, acc: Any, weights: Any, x_word: Any) -> Any:
    """acc + sums of 2 int16 products, likewise."""
    lanes = acc.type.count
    x = e.splat(x_word, lanes)
    if lanes == 16:
        return _vnni_512(e, "vpdpwssd", acc, weights, x, vec(I16, 32))
    return e.b.add(acc, e.madd(e.b.bitcast(weights, vec(I16, 16)), e.b.bitcast(x, vec(I16, 16))))


def _splat_float(e: Emitter, address: Any, lanes: int) -> Any:
    return e.splat(e.load(address, F32, 4), lanes)


def _sums_legacy(e: Emitter, quant_type: QuantType, tile: Any, n_cols: Any, tokens: Sequence[Any]) -> list[Any]:
    """[lanes] float32 sums of each token's q8_32 record."""
    b, lanes = e.b, lanes_of(e.isa)
    words, floats = vec(I32, lanes), vec(F32, lanes)
    biased, minima = is_biased(quant_type, e.isa), has_minima(quant_type, e.isa)
    eighth = b.lshr(n_cols, e.i64(3))

    def block(i: Any, sums: list[Any]) -> list[Any]:
        at = b.add(tile, b.mul(i, e.i64(tile_block_bytes(quant_type, e.isa))))
        weights = [e.load(e.at(at, 4 * lanes * k), words, 4) for k in range(8)]
        d = e.load(e.at(at, 32 * lanes), floats, 4)
        m = e.load(e.at(at, 36 * lanes), floats, 4) if minima else None
        x_at, d_at = b.shl(i, e.i64(5)), b.add(n_cols, b.shl(i, e.i64(2)))
        s_at = b.add(d_at, eighth)
        bias_at = b.add(s_at, eighth)
        for t, record in enumerate(tokens):
            x = b.add(record, x_at)
            total = e.splat(e.load(b.add(record, bias_at), I32, 4), lanes) if biased else e.zero(words)
            for k, w in enumerate(weights):
                total = _dot_bytes(e, total, w, e.load(e.at(x, 4 * k), I32, 4), not minima)
            scale = b.fmul(d, _splat_float(e, b.add(record, d_at), lanes))
            sums[t] = e.fma(b.sitofp(total, floats), scale, sums[t])
            if m is not None:
                sums[t] = e.fma(m, _splat_float(e, b.add(record, s_at), lanes), sums[t])
        return sums

    return e.loop(b.lshr(n_cols, e.i64(5)), [e.zero(floats)] * len(tokens), block)


def _sums_k(e: Emitter, quant_type: QuantType, tile: Any, n_cols: Any, tokens: Sequence[Any]) -> list[Any]:
    """[lanes] float32 sums of each token's q8_256 record."""
    b, lanes = e.b, lanes_of(e.isa)
    words, floats = vec(I32, lanes), vec(F32, lanes)
    minima, n_scales = has_minima(quant_type, e.isa), scale_panels(quant_type)
    per_scale = 32 if quant_type in SCALE_PER_32 else 16
    signed = quant_type == QuantType.IQ4_XS
    panel = 32 * lanes

    def block(i: Any, sums: list[Any]) -> list[Any]:
        at = b.add(tile, b.mul(i, e.i64(tile_block_bytes(quant_type, e.isa))))
        x_at = b.shl(i, e.i64(8))

        def part(j: Any, partial: list[Any]) -> list[Any]:
            w_at = b.add(at, b.mul(j, e.i64(per_scale * lanes)))
            weights = [e.load(e.at(w_at, 4 * lanes * k), words, 4) for k in range(per_scale // 4)]
            scale = e.load(b.add(e.at(at, 8 * panel), b.mul(j, e.i64(4 * lanes))), floats, 4)
            x_part = b.add(x_at, b.mul(j, e.i64(per_scale)))
            for t, record in enumerate(tokens):
                x, total = b.add(record, x_part), e.zero(words)
                for k, w in enumerate(weights):
                    total = _dot_bytes(e, total, w, e.load(e.at(x, 4 * k), I32, 4), signed)
                partial[t] = e.fma(b.sitofp(total, floats), scale, partial[t])
            return partial

        partial = e.loop(e.i64(256 // per_scale), [e.zero(floats)] * len(tokens), part)
        if minima:
            partial = _minus_minima(
                e, e.at(at, (8 + n_scales) * panel), b.add(n_cols, b.shl(i, e.i64(5))), tokens, partial
            )
        d_at = b.add(b.add(n_cols, b.lshr(n_cols, e.i64(3))), b.shl(i, e.i64(2)))
        return [
            e.fma(p, _splat_float(e, b.add(record, d_at), lanes), s)
            for p, record, s in zip(partial, tokens, sums, strict=True)
        ]

    return e.loop(b.lshr(n_cols, e.i64(8)), [e.zero(floats)] * len(tokens), block)


def _minus_minima(e: Emitter, at: Any, x_at: Any, tokens: Sequence[Any], partial: Sequence[Any]) -> list[Any]:
    """Take dmin * min * (sum of activations) off; `at` is the panel of minima, `x_at` the place of sums in a record."""
    b, lanes = e.b, lanes_of(e.isa)
    minima = [e.load(e.at(at, 4 * lanes * k), vec(I32, lanes), 4) for k in range(8)]
    minus_d = e.load(e.at(at, 32 * lanes), vec(F32, lanes), 4)
    results = []
    for record, value in zip(tokens, partial, strict=True):
        total = e.zero(vec(I32, lanes))
        for k, pair in enumerate(minima):
            total = _dot_halves(e, total, pair, e.load(e.at(b.add(record, x_at), 4 * k), I32, 4))
        results.append(e.fma(b.sitofp(total, minus_d.type), minus_d, value))
    return results


def _sums_float(e: Emitter, quant_type: QuantType, tile: Any, n_cols: Any, tokens: Sequence[Any]) -> list[Any]:
    """[lanes] float32 sums of each token's float32 row, column by column."""
    b, lanes = e.b, lanes_of(e.isa)
    kind = vec(F32, lanes)

    def column(k: Any, sums: list[Any]) -> list[Any]:
        w = e.load(b.add(tile, b.mul(k, e.i64(4 * lanes))), kind, 4)
        at = b.shl(k, e.i64(2))
        return [e.fma(w, _splat_float(e, b.add(x, at), lanes), s) for x, s in zip(tokens, sums, strict=True)]

    return e.loop(n_cols, [e.zero(kind)] * len(tokens), column)


def _store_rows(e: Emitter, value: Any, address: Any, n_rows: Any) -> None:
    """Write the first n_rows lanes."""
    lanes = value.type.count
    mask_kind = vec(I1, lanes)
    wanted = e.splat(e.b.trunc(n_rows, I32), lanes)
    mask = e.b.icmp_signed("<", e.const(vec(I32, lanes), list(range(lanes))), wanted)
    place = e.b.inttoptr(address, value.type.as_pointer())
    name = f"llvm.masked.store.v{lanes}f32.p0"
    function = e.b.module.globals.get(name)
    if function is None:
        kind = ir.FunctionType(ir.VoidType(), [value.type, place.type, I32, mask_kind])
        function = ir.Function(e.b.module, kind, name)
    e.b.call(function, [value, place, e.i32(4), mask])


def emit_dots(quant_type: QuantType) -> Callable[..., None]:
    """Emits the `dots` function of `quant_type`."""
    sums = _sums_float if quant_type in FLOAT_TYPES else _sums_k if quant_type in dot_k.UNPACK else _sums_legacy

    def body(
        e: Emitter, tile: Any, n_rows: Any, n_cols: Any, n_tokens: Any, x_rows: Any, out_rows: Any, column: Any
    ) -> None:
        b = e.b
        last = b.sub(n_tokens, e.i64(1))

        def group(first: Any, width: int) -> None:
            """`width` tokens from `first` on; past the end the last token is computed again."""
            places = []
            for t in range(width):
                token = e.at(first, t)
                places.append(b.shl(b.select(b.icmp_signed("<", token, last), token, last), e.i64(3)))
            tokens = [e.load(b.add(x_rows, p), I64, 8) for p in places]
            for p, value in zip(places, sums(e, quant_type, tile, n_cols, tokens), strict=True):
                _store_rows(e, value, b.add(e.load(b.add(out_rows, p), I64, 8), column), n_rows)

        wide = tokens_of(e.isa)

        def whole(g: Any, _: list[Any]) -> list[Any]:
            group(b.mul(g, e.i64(wide)), wide)
            return []

        # a rest of more than half a group runs as a whole one, a smaller rest in halves and quarters
        n_wide = b.udiv(e.at(n_tokens, wide // 2 - 1), e.i64(wide))
        with b.if_then(b.icmp_signed(">", n_wide, e.i64(0))):
            e.loop(n_wide, [], whole)
        first = b.mul(n_wide, e.i64(wide))
        width = wide // 2
        rest = b.sub(n_tokens, first)
        while width > 1:
            lower = width // 2 if width > 2 else 0
            fits = b.and_(b.icmp_signed(">", rest, e.i64(lower)), b.icmp_signed("<=", rest, e.i64(width)))
            with b.if_then(fits):
                group(first, width)
            width //= 2

    return body
