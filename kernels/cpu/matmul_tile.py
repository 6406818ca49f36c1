"""Weight tiles for many tokens: LANES rows decoded once into bytes that stand lane by lane, then used for every token.

A tile is a sequence of blocks of 32 (legacy types), 256 (K types) or 8 (float types) columns. Within a block come
panels: a panel is 8 four-byte words of each row, transposed, [8][lanes] words, so that one vector holds the same word
of all rows:
    legacy   quants 1 panel; d float32 [lanes]; m float32 [lanes] if the type has minima
    K        quants 8 panels; scales d * scale float32 1 panel (a scale per 32 weights) or 2 (per 16); integer minima,
             two int16 a word, 1 panel, and -dmin float32 [lanes], both only where a block has minima
    float    1 panel of float32
Quants with a sign are stored plus 128 where the dot instruction wants an unsigned side (`is_biased`). The products are
in matmul_dots.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kernels.cpu import dot_k, dot_legacy
from kernels.cpu.dot_float import FLOAT_TYPES, load_float, load_floats
from kernels.cpu.vector_ir import F32, I8, I32, V16I16, V32I8, Emitter, vec
from kernels.quant_types import QuantType, block_bytes, block_size

SCALE_PER_32 = (QuantType.Q4_K, QuantType.Q5_K, QuantType.IQ4_XS)
_LEGACY_MINIMA = (QuantType.Q4_1, QuantType.Q5_1)
_SIGNED = (QuantType.Q8_0, QuantType.Q4_0, QuantType.Q5_0, QuantType.IQ4_NL, QuantType.MXFP4, QuantType.IQ4_XS)
_BIAS = 128


def lanes_of(isa: str) -> int:
    """Rows of a tile: one 32-bit lane each."""
    return 16 if isa == "avx512vnni" else 8


def is_biased(quant_type: QuantType, isa: str) -> bool:
    """Whether quants are stored plus 128: AVX512-VNNI multiplies unsigned bytes (the tile) by signed ones."""
    return isa == "avx512vnni" and quant_type in _SIGNED


def has_minima(quant_type: QuantType, isa: str) -> bool:
    """Whether blocks carry something that multiplies sums of activations; a bias of a K type is undone there too."""
    if quant_type in dot_k.UNPACK:
        return quant_type != QuantType.IQ4_XS or is_biased(quant_type, isa)
    return quant_type in _LEGACY_MINIMA


def scale_panels(quant_type: QuantType) -> int:
    return 1 if quant_type in SCALE_PER_32 else 2


def block_columns(quant_type: QuantType) -> int:
    return 8 if quant_type in FLOAT_TYPES else block_size(quant_type)


def tile_block_bytes(quant_type: QuantType, isa: str) -> int:
    """Bytes of one block of a tile."""
    lanes, minima = lanes_of(isa), has_minima(quant_type, isa)
    panel = 32 * lanes
    if quant_type in FLOAT_TYPES:
        return panel
    if quant_type in dot_k.UNPACK:
        return panel * (8 + scale_panels(quant_type) + minima) + 4 * lanes * minima
    return panel + 4 * lanes * (1 + minima)


def tile_bytes(quant_type: QuantType, n_cols: int, isa: str) -> int:
    """Scratch that a tile of rows of n_cols weights takes."""
    return -(-n_cols // block_columns(quant_type)) * tile_block_bytes(quant_type, isa)


def _transpose_panel(e: Emitter, source: Any, target: Any, lanes: int) -> None:
    """Write the 8 words of `lanes` rows at `source` [lanes][8] as `target` [8][lanes].

    Three perfect shuffles of 8 vectors transpose 8 x 8 words. With 16 lanes, vector r holds rows r and r + 8, one in
    each half, and the halves are transposed side by side.
    """
    halves = lanes // 8
    rows = [[e.load(e.at(source, 32 * (r + 8 * h)), vec(I32, 8), 32) for h in range(halves)] for r in range(8)]
    vectors = [row[0] if halves == 1 else e.concat(*row) for row in rows]
    low, high = [], []
    for h in range(halves):
        low += [w for k in range(4) for w in (8 * h + k, lanes + 8 * h + k)]
        high += [w for k in range(4, 8) for w in (8 * h + k, lanes + 8 * h + k)]
    for _ in range(3):
        pairs = [(vectors[i], vectors[i + 4]) for i in range(4)]
        vectors = [e.shuffle(a, order, b) for a, b in pairs for order in (low, high)]
    for k, vector in enumerate(vectors):
        e.store(vector, e.at(target, 4 * lanes * k), 4)


def _workspace(e: Emitter, n_bytes: int) -> Any:
    """Address of n_bytes on the stack, aligned for whole vectors."""
    place = e.b.alloca(vec(I8, 64), size=n_bytes // 64)
    place.align = 64
    return e.b.ptrtoint(place, e.i64(0).type)


def _row_address(e: Emitter, w: Any, row_bytes: Any, n_rows: Any, r: Any) -> Any:
    """Row r, or the last one for the lanes that a short tile leaves over; their results are never stored."""
    last = e.b.sub(n_rows, e.i64(1))
    return e.b.add(w, e.b.mul(e.b.select(e.b.icmp_signed("<", r, last), r, last), row_bytes))


def _legacy_row(e: Emitter, quant_type: QuantType, p: Any, r: Any, rows: Any, block: Any) -> None:
    lanes = lanes_of(e.isa)
    unpacked = dot_legacy.UNPACK[quant_type](e, p)
    q = e.b.xor(unpacked.q, e.const(V32I8, _BIAS)) if is_biased(quant_type, e.isa) else unpacked.q
    at = e.b.shl(r, e.i64(2))
    e.store(q, e.b.add(rows, e.b.shl(r, e.i64(5))), 32)
    e.store(unpacked.d, e.b.add(e.at(block, 32 * lanes), at), 4)
    if unpacked.m is not None:
        e.store(unpacked.m, e.b.add(e.at(block, 36 * lanes), at), 4)


def _k_row(e: Emitter, quant_type: QuantType, p: Any, r: Any, rows: Any, block: Any) -> None:
    b, lanes, biased = e.b, lanes_of(e.isa), is_biased(quant_type, e.isa)
    panel = 32 * lanes
    unpacked = dot_k.UNPACK[quant_type](e, p)
    row = b.add(rows, b.shl(r, e.i64(5)))
    for g, q in enumerate(unpacked.q):
        e.store(b.xor(q, e.const(V32I8, _BIAS)) if biased else q, e.at(row, g * panel), 32)
    n_scales = scale_panels(quant_type)
    for half in range(n_scales):
        order = range(0, 16, 2) if n_scales == 1 else range(8 * half, 8 * half + 8)
        scales = b.sitofp(b.sext(e.shuffle(unpacked.scales, list(order)), vec(I32, 8)), vec(F32, 8))
        e.store(b.fmul(scales, e.splat(unpacked.d, 8)), e.at(row, (8 + half) * panel), 32)
    if has_minima(quant_type, e.isa):
        # a bias of 128 on every quant takes away 128 * scale * (sum of 16 activations), like a minimum that shares d
        mins = b.shl(unpacked.scales, e.const(V16I16, 7)) if biased else unpacked.mins
        e.store(mins, e.at(row, (8 + n_scales) * panel), 32)
        dmin = unpacked.d if unpacked.dmin is None else unpacked.dmin
        e.store(b.fneg(dmin), b.add(e.at(block, (9 + n_scales) * panel), b.shl(r, e.i64(2))), 4)


def _emit_quantised(
    e: Emitter, quant_type: QuantType, w: Any, row_bytes: Any, n_rows: Any, n_cols: Any, tile: Any
) -> None:
    """Blocks one after another: decode the block of each row into the workspace, then transpose its panels."""
    b, lanes = e.b, lanes_of(e.isa)
    is_k = quant_type in dot_k.UNPACK
    one_row = _k_row if is_k else _legacy_row
    n_panels = 8 + scale_panels(quant_type) + has_minima(quant_type, e.isa) if is_k else 1
    rows = _workspace(e, n_panels * 32 * lanes)

    def block(i: Any, _: list[Any]) -> list[Any]:
        target = b.add(tile, b.mul(i, e.i64(tile_block_bytes(quant_type, e.isa))))
        column = b.mul(i, e.i64(block_bytes(quant_type)))

        def decode(r: Any, _: list[Any]) -> list[Any]:
            one_row(e, quant_type, b.add(_row_address(e, w, row_bytes, n_rows, r), column), r, rows, target)
            return []

        def transpose(p: Any, _: list[Any]) -> list[Any]:
            at = b.mul(p, e.i64(32 * lanes))
            _transpose_panel(e, b.add(rows, at), b.add(target, at), lanes)
            return []

        e.loop(e.i64(lanes), [], decode)
        e.loop(e.i64(n_panels), [], transpose)
        return []

    e.loop(b.udiv(n_cols, e.i64(block_size(quant_type))), [], block)


def _emit_float(e: Emitter, quant_type: QuantType, w: Any, row_bytes: Any, n_rows: Any, n_cols: Any, tile: Any) -> None:
    """Panels of 8 columns; the columns that are left over go one by one into the last panel."""
    b, lanes, size = e.b, lanes_of(e.isa), block_bytes(quant_type)
    rows = _workspace(e, 32 * lanes)
    n_whole = b.lshr(n_cols, e.i64(3))

    def panel(i: Any, _: list[Any]) -> list[Any]:
        def decode(r: Any, _: list[Any]) -> list[Any]:
            p = b.add(_row_address(e, w, row_bytes, n_rows, r), b.mul(i, e.i64(8 * size)))
            e.store(load_floats(e, quant_type, p), b.add(rows, b.shl(r, e.i64(5))), 32)
            return []

        e.loop(e.i64(lanes), [], decode)
        _transpose_panel(e, rows, b.add(tile, b.mul(i, e.i64(32 * lanes))), lanes)
        return []

    def column(k: Any, _: list[Any]) -> list[Any]:
        def one(r: Any, _: list[Any]) -> list[Any]:
            p = b.add(_row_address(e, w, row_bytes, n_rows, r), b.mul(k, e.i64(size)))
            e.store(load_float(e, quant_type, p), b.add(tile, b.add(b.mul(k, e.i64(4 * lanes)), b.shl(r, e.i64(2)))), 4)
            return []

        e.loop(e.i64(lanes), [], one)
        return []

    with b.if_then(b.icmp_signed(">", n_whole, e.i64(0))):
        e.loop(n_whole, [], panel)
    first = b.shl(n_whole, e.i64(3))
    with b.if_then(b.icmp_signed("<", first, n_cols)):
        e.loop(n_cols, [], column, first=first)


def emit_tile(quant_type: QuantType) -> Callable[..., None]:
    """Emits `void tile(w, row_bytes, n_rows, n_cols, tile)`: decode n_rows (1..lanes) rows of blocks at w."""
    emit = _emit_float if quant_type in FLOAT_TYPES else _emit_quantised

    def body(e: Emitter, w: Any, row_bytes: Any, n_rows: Any, n_cols: Any, tile: Any) -> None:
        emit(e, quant_type, w, row_bytes, n_rows, n_cols, tile)

    return body
