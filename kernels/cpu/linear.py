"""Quantised linear layers: rows of one or several weights times the activations of a call, in one parallel region.

Weights are read in place, as GGUF blocks. For many tokens see matmul.py; types without a direct kernel go through
dequant_path.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numba import njit, prange

from kernels.backend import Activations, Weight
from kernels.cpu.addresses import address
from kernels.cpu.dequant_path import dots_dequantized
from kernels.cpu.matmul import MIN_TOKENS, TileTable, matmul, matmul_dequantized
from kernels.cpu.native_call import call_native
from kernels.cpu.parallel import num_threads
from kernels.cpu.quantize_activations import FORM_F32, FORM_KEYS, quantize
from kernels.cpu.recycled import new_rows
from kernels.cpu.type_table import TypeTable
from kernels.quant_types import row_bytes

CHUNK_ROWS = 16
"""Rows that stay in cache while every token of a small call goes over them."""

MAX_PLANS = 4096

# columns of a plan's table: rows function, address, bytes a row, first output column, rows, form
_PLAN_COLUMNS = 6


@njit(nogil=True, cache=True)
def _linear_part(plan, low, high, n_cols, n_tokens, x, x_stride, out, out_stride):
    """Output columns low..high-1. `x`, `x_stride`: address and stride of the records by FORM_*."""
    for w in range(plan.shape[0]):
        rows, matrix, n_bytes, first_column, n_rows, form = plan[w]
        first = max(low - first_column, 0)
        last = min(high - first_column, n_rows)
        if rows == 0:  # no direct kernel: dequant_path fills these columns
            continue
        if n_tokens == 1 and first < last:
            call_native(
                rows, matrix + first * n_bytes, n_bytes, last - first, n_cols, x[form], out + 4 * (first_column + first)
            )
            continue
        for r in range(first, last, CHUNK_ROWS):
            n = min(CHUNK_ROWS, last - r)
            for t in range(n_tokens):
                out_row = out + t * out_stride + 4 * (first_column + r)
                call_native(rows, matrix + r * n_bytes, n_bytes, n, n_cols, x[form] + t * x_stride[form], out_row)


@njit(nogil=True, cache=True, parallel=True)
def _linear(plan, x, q32, q32_stride, q256, q256_stride, out, n_parts):
    n_tokens, n_cols = x.shape
    n_columns = out.shape[1]
    for part in prange(n_parts):
        records, strides = (address(x), q32, q256), (4 * n_cols, q32_stride, q256_stride)
        low, high = part * n_columns // n_parts, (part + 1) * n_columns // n_parts
        _linear_part(plan, low, high, n_cols, n_tokens, records, strides, address(out), 4 * n_columns)


def records_of(a: Activations, forms: Iterable[int], types: TypeTable) -> list[int]:
    """[address, stride, address, stride] of the q8_32 and q8_256 records of `a`, zeros where a form is not asked for.

    A form is made on first use and kept in a.forms. Raises ValueError if a.x is not C-contiguous float32 of a fitting
    width.
    """
    records = [0, 0, 0, 0]
    for form in forms:
        if form != FORM_F32:
            key = FORM_KEYS[form]
            record = a.forms.get(key)
            if record is None:
                record = a.forms[key] = quantize(a.x, form, types.quantizers[form])
            records[2 * form - 2], records[2 * form - 1] = record.address, record.stride
    return records


@dataclass(frozen=True, slots=True)
class Plan:
    """One call over `weights`: table int64 [n_weights, 6] for the kernel, total rows, forms that are read, and
    whether every type has a direct kernel."""

    weights: tuple[Weight, ...]
    table: np.ndarray
    n_columns: int
    forms: tuple[int, ...]
    direct: bool


class LinearPlans:
    """The plans of the weights that were used together, found again by identity: a plan keeps its weights alive."""

    def __init__(self, types: TypeTable, tiles: TileTable) -> None:
        self.types, self.tiles = types, tiles
        self._plans: dict[tuple[int, ...], Plan] = {}

    def plan(self, weights: tuple[Weight, ...]) -> Plan:
        """The plan of one call over `weights`. Raises ValueError where their widths differ."""
        key = tuple(map(id, weights))
        found = self._plans.get(key)
        if found is None:
            if len(self._plans) >= MAX_PLANS:
                self._plans.clear()
            found = self._plans[key] = self._build(weights)
        return found

    def _build(self, weights: tuple[Weight, ...]) -> Plan:
        if len({w.n_cols for w in weights}) != 1:
            raise ValueError(f"one linear call over weights of different widths {[w.n_cols for w in weights]}")
        table = np.zeros((len(weights), _PLAN_COLUMNS), np.int64)
        first = 0
        for i, w in enumerate(weights):
            self.types.require([w.quant_type])
            rows, _, _, form = self.types.rows[w.quant_type]
            table[i] = (rows, w.data.ctypes.data, row_bytes(w.quant_type, w.n_cols), first, w.n_rows, form)
            first += w.n_rows
        return Plan(weights, table, first, tuple(sorted(set(table[:, 5].tolist()))), bool(table[:, 0].all()))


def linear(a: Activations, weights: tuple[Weight, ...], plans: LinearPlans) -> np.ndarray:
    """a.x @ W^T for the row-wise concatenation of `weights`: fresh float32 [T, sum of n_rows]."""
    plan = plans.plan(weights)
    n_tokens, n_cols = a.x.shape
    if weights[0].n_cols != n_cols:
        raise ValueError(f"activations of width {n_cols} for weights of width {weights[0].n_cols}")
    out = new_rows(n_tokens, plan.n_columns)
    if not plan.direct:
        for (rows, matrix, _, first, n_rows, _), w in zip(plan.table.tolist(), weights, strict=True):
            if not rows:
                columns = out[:, first : first + n_rows]
                if n_tokens < MIN_TOKENS:
                    dots_dequantized(matrix, w.quant_type, n_rows, a.x, columns, plans.types)
                else:
                    matmul_dequantized(matrix, w.quant_type, n_rows, a.x, columns, plans.tiles, num_threads())
    records = records_of(a, plan.forms, plans.types)
    if n_tokens < MIN_TOKENS:
        _linear(plan.table, a.x, *records, out, num_threads())
    else:
        matmul(weights, (a.x.ctypes.data, 4 * n_cols, *records), out, plans.tiles, num_threads())
    return out
