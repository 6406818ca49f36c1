"""Quantised linear layers: rows of one or several weights times the activations of a call, in one parallel region.

Weights are read in place, as GGUF blocks. For many tokens see matmul.py; types without a direct kernel go through dequant_path.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numba import njit, prange

from kernels.backend import Activations, Weight
from kernels.cpu.dequant_path import dots_dequantized
from kernels.cpu.native_call import call_native
from kernels.cpu.parallel import num_threads
from kernels.cpu.quantize_activations import FORM_F32, FORM_KEYS, Form, new_form
from kernels.cpu.type_table import TypeTable
from kernels.quant_types import row_bytes

CHUNK_ROWS = 16
"""Rows that stay in cache while every token of a small call goes over them."""

# columns of a plan: rows function, address, bytes a row, first output column, rows, form
_PLAN_COLUMNS = 6


@njit(nogil=True, cache=True)
def _linear_part(plan, low, high, n_cols, n_tokens, x, x_stride, out, out_stride):
    """Output columns low..high-1. `x`, `x_stride`: address and stride of the records by FORM_*."""
    for w in range(plan.shape[0]):
        rows, address, n_bytes, first_column, n_rows, form = plan[w]
        first = max(low - first_column, 0)
        last = min(high - first_column, n_rows)
        if rows == 0:  # no direct kernel: dequant_path fills these columns
            continue
        if n_tokens == 1 and first < last:
            call_native(rows, address + first * n_bytes, n_bytes, last - first, n_cols, x[form], out + 4 * (first_column + first))
            continue
        for r in range(first, last, CHUNK_ROWS):
            n = min(CHUNK_ROWS, last - r)
            for t in range(n_tokens):
                out_row = out + t * out_stride + 4 * (first_column + r)
                call_native(rows, address + r * n_bytes, n_bytes, n, n_cols, x[form] + t * x_stride[form], out_row)


@njit(nogil=True, cache=True, parallel=True)
def _linear(plan, n_columns, n_cols, n_tokens, f32, f32_stride, q32, q32_stride, q256, q256_stride, out, n_parts):
    for part in prange(n_parts):
        x, x_stride = (f32, q32, q256), (f32_stride, q32_stride, q256_stride)
        low, high = part * n_columns // n_parts, (part + 1) * n_columns // n_parts
        _linear_part(plan, low, high, n_cols, n_tokens, x, x_stride, out, 4 * n_columns)


@njit(nogil=True, cache=True)
def _quantize_serial(function, x, x_stride, record, record_stride, n_rows, n_cols):
    for i in range(n_rows):
        call_native(function, x + i * x_stride, record + i * record_stride, n_cols)


@njit(nogil=True, cache=True, parallel=True)
def _quantize_parallel(function, x, x_stride, record, record_stride, n_rows, n_cols, n_parts):
    for part in prange(n_parts):
        for i in range(part * n_rows // n_parts, (part + 1) * n_rows // n_parts):
            call_native(function, x + i * x_stride, record + i * record_stride, n_cols)


def data_address(array: np.ndarray) -> int:
    """Address of the first element."""
    return int(array.__array_interface__["data"][0])


def record_of(a: Activations, form: int, types: TypeTable) -> Form:
    """The records of `a` in FORM_* `form`, made on first use and kept in a.forms. Raises ValueError if a.x is not C-contiguous float32."""
    key = FORM_KEYS[form]
    found = a.forms.get(key)
    if found is not None:
        return found  # type: ignore[no-any-return]
    x = a.x
    if x.dtype != np.float32 or not x.flags.c_contiguous or x.ndim != 2:
        raise ValueError(f"activations must be C-contiguous float32 [T, D], got {x.dtype} {x.shape}")
    n_tokens, n_cols = x.shape
    address = data_address(x)
    if form == FORM_F32:
        made = Form(address, 4 * n_cols, x)
    else:
        made = new_form(form, n_tokens, n_cols)
        arguments = (types.quantizers[form], address, 4 * n_cols, made.address, made.stride, n_tokens, n_cols)
        if n_tokens < 8:
            _quantize_serial(*arguments)
        else:
            _quantize_parallel(*arguments, num_threads())
    a.forms[key] = made
    return made


Plan = tuple[np.ndarray, int, frozenset[int], bool]
"""(plan int64 [n_weights, 6], total rows, forms read, whether every type has a direct kernel)"""


class LinearPlans:
    """Turns tuples of weights into the kernel's plan arrays and keeps them: a plan holds addresses only, never the weights."""

    def __init__(self, types: TypeTable) -> None:
        self.types = types
        self._plans: dict[tuple[int, ...], Plan] = {}

    def plan(self, weights: Sequence[Weight]) -> Plan:
        """The plan of one call over `weights`. Raises ValueError where their widths differ."""
        key: tuple[int, ...] = ()
        for w in weights:
            key += (data_address(w.data), w.quant_type, w.n_rows)
        key += (weights[0].n_cols,)
        found = self._plans.get(key)
        if found is None:
            found = self._plans[key] = self._build(weights)
        return found

    def _build(self, weights: Sequence[Weight]) -> Plan:
        if len({w.n_cols for w in weights}) != 1:
            raise ValueError(f"one linear call over weights of different widths {[w.n_cols for w in weights]}")
        plan = np.zeros((len(weights), _PLAN_COLUMNS), np.int64)
        first = 0
        for i, w in enumerate(weights):
            self.types.require([w.quant_type])
            rows, _, _, form = self.types.rows[w.quant_type]
            plan[i] = (rows, data_address(w.data), row_bytes(w.quant_type, w.n_cols), first, w.n_rows, form)
            first += w.n_rows
        return plan, first, frozenset(plan[:, 5].tolist()), bool(plan[:, 0].all())


def linear(a: Activations, weights: Sequence[Weight], plans: LinearPlans) -> np.ndarray:
    """a.x @ W^T for the row-wise concatenation of `weights`: fresh float32 [T, sum of n_rows]."""
    plan, n_columns, forms, direct = plans.plan(weights)
    n_tokens, n_cols = a.x.shape
    if weights[0].n_cols != n_cols:
        raise ValueError(f"activations of width {n_cols} for weights of width {weights[0].n_cols}")
    out = np.empty((n_tokens, n_columns), np.float32)
    if not direct:
        for (rows, address, _, first, n_rows, _), w in zip(plan.tolist(), weights, strict=True):
            if not rows:
                dots_dequantized(address, w.quant_type, n_rows, a.x, out[:, first : first + n_rows], plans.types)
    records = [0] * 6
    for form in forms:
        record = record_of(a, form, plans.types)
        records[2 * form], records[2 * form + 1] = record.address, record.stride
    _linear(plan, n_columns, n_cols, n_tokens, *records, data_address(out), num_threads())
    return out
