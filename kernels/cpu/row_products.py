"""Small float32 matrix products inside numba code: rows += coefficients @ rows, as vector IR.

    out[m, :] = factor * out[m, :] + sum over k of a[m, k] * b[k, :]

for ROWS rows m at once, or for one; `fresh` forms begin at 0 and read nothing of `out`. k is summed in order, each
product by a fused multiply-add, so that a row's result is the same in a group and alone. Rows may have any width: what
the vectors leave is done lane by lane. Weights of a model are not multiplied here (matmul.py).
"""

from __future__ import annotations

from typing import Any

from numba import njit

from kernels.cpu.features import TARGET
from kernels.cpu.native import address_of
from kernels.cpu.native_call import call_native
from kernels.cpu.vector_ir import F32, Emitter, vec

ROWS = 8 if TARGET.isa == "avx512vnni" else 4
"""Rows of a group: with two vectors of columns these are 16 sums in the 32 registers of AVX512, 8 in the 16 of
others."""

_LANES = 16 if TARGET.isa == "avx512vnni" else 8
_VECTORS_OF_ONE_ROW = 8  # enough sums of their own to hide the latency of a multiply-add


def emit_row_products(e: Emitter, arguments: tuple[Any, ...], rows: int, lanes: int, fresh: bool) -> None:
    """See the module. arguments: out, out_stride, address of the float32 factor, a, a_row_stride, a_k_stride, b,
    b_stride, n_k (>= 1), n_columns; strides in bytes.
    """
    b, (out, out_stride, factor_at, a, a_row, a_k, right, right_stride, n_k, n_columns) = e.b, arguments
    outs = [b.add(out, b.mul(e.i64(m), out_stride)) for m in range(rows)]
    lefts = [b.add(a, b.mul(e.i64(m), a_row)) for m in range(rows)]
    factor = None if fresh else e.load(factor_at, F32, 4)

    def block(column: Any, together: int, lanes: int) -> None:
        at = b.mul(column, e.i64(4))
        kind = F32 if lanes == 1 else vec(F32, lanes)
        places = [e.at(b.add(row, at), 4 * lanes * i) for row in outs for i in range(together)]
        if factor is None:
            sums = [e.zero(kind)] * len(places)
        else:
            wide = factor if lanes == 1 else e.splat(factor, lanes)
            sums = [b.fmul(e.load(place, kind, 4), wide) for place in places]

        def step(k: Any, sums: list[Any]) -> list[Any]:
            row, along = b.add(b.add(right, at), b.mul(k, right_stride)), b.mul(k, a_k)
            values = [e.load(e.at(row, 4 * lanes * i), kind, 4) for i in range(together)]
            for m, left in enumerate(lefts):
                one = e.load(b.add(left, along), F32, 4)
                one = one if lanes == 1 else e.splat(one, lanes)
                for i, value in enumerate(values):
                    sums[together * m + i] = e.fma(one, value, sums[together * m + i])
            return sums

        for place, total in zip(places, e.loop(n_k, sums, step), strict=True):
            e.store(total, place, 4)

    def blocks(first: Any, together: int, lanes: int) -> Any:
        """As many blocks as fit behind column `first`; the column behind them."""
        width = e.i64(together * lanes)
        count = b.sdiv(b.sub(n_columns, first), width)

        def one(i: Any, _: list[Any]) -> list[Any]:
            block(b.add(first, b.mul(i, width)), together, lanes)
            return []

        with b.if_then(b.icmp_signed(">", count, e.i64(0))):
            e.loop(count, [], one)
        return b.add(first, b.mul(count, width))

    column = blocks(e.i64(0), 2 if rows > 1 else _VECTORS_OF_ONE_ROW, lanes)
    column = blocks(column, 1, lanes)
    blocks(column, 1, 1)


def row_products_addresses() -> tuple[int, int, int, int]:
    """Addresses of the forms for ROWS rows and for one, each with a factor and fresh."""
    return (
        _address(ROWS, fresh=False),
        _address(1, fresh=False),
        _address(ROWS, fresh=True),
        _address(1, fresh=True),
    )


def _address(rows: int, fresh: bool) -> int:
    name = f"row_products_{rows}_{'fresh' if fresh else 'scaled'}"
    return address_of(name, 10, lambda e, *arguments: emit_row_products(e, arguments, rows, _LANES, fresh))


@njit(nogil=True, cache=True)
def products(forms, fresh, out, out_stride, factor, a, a_row, a_k, b, b_stride, n_rows, n_k, n_columns):
    """The module's products over n_rows rows, by `forms` of `row_products_addresses`; arguments are addresses, strides
    in bytes.
    """
    many, one = (forms[2], forms[3]) if fresh else (forms[0], forms[1])
    whole = n_rows // ROWS * ROWS
    for m in range(0, whole, ROWS):
        call_native(
            many, out + m * out_stride, out_stride, factor, a + m * a_row, a_row, a_k, b, b_stride, n_k, n_columns
        )
    for m in range(whole, n_rows):
        call_native(
            one, out + m * out_stride, out_stride, factor, a + m * a_row, a_row, a_k, b, b_stride, n_k, n_columns
        )
