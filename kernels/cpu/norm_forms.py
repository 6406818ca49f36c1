"""RMS norm and the quantised forms that its readers need, in one compiled call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit, prange

from kernels.backend import Activations, Weight
from kernels.cpu.addresses import address, aligned_address
from kernels.cpu.norm import norm_row
from kernels.cpu.parallel import num_threads
from kernels.cpu.quantize_activations import (
    ALIGN,
    FORM_KEYS,
    FORM_Q8_32,
    FORM_Q8_256,
    Form,
    quantize_row,
    record_buffer,
    record_bytes,
)
from kernels.cpu.recycled import OCTETS, new_rows
from kernels.cpu.type_table import TypeTable

_NOTHING = np.empty(0, np.uint8)
MAX_PLANS = 4096


@njit(nogil=True, cache=True)
def _row(i, x, weight, eps, out, quantize_32, first_32, stride_32, quantize_256, first_256, stride_256):
    norm_row(x[i], weight, eps, out[i])
    at, n_cols = address(out) + i * 4 * x.shape[1], x.shape[1]
    if quantize_32:
        quantize_row(quantize_32, at, first_32 + i * stride_32, n_cols)
    if quantize_256:
        quantize_row(quantize_256, at, first_256 + i * stride_256, n_cols)


@njit(nogil=True, cache=True)
def _one(x, weight, eps, out, steps, buffer):
    """One row. steps int64 [2, 2]: (quantiser or 0, offset of the record in `buffer`) of each form; returns where
    offsets count from."""
    base = aligned_address(buffer)
    norm_row(x[0], weight, eps, out[0])
    for i in range(2):
        if steps[i, 0]:
            quantize_row(steps[i, 0], address(out), base + steps[i, 1], x.shape[1])
    return base


@njit(nogil=True, cache=True, parallel=True)
def _parallel(x, weight, eps, out, quantize_32, buffer_32, stride_32, quantize_256, buffer_256, stride_256, n_parts):
    first_32, first_256 = aligned_address(buffer_32), aligned_address(buffer_256)
    for part in prange(n_parts):
        for i in range(part * x.shape[0] // n_parts, (part + 1) * x.shape[0] // n_parts):
            _row(i, x, weight, eps, out, quantize_32, first_32, stride_32, quantize_256, first_256, stride_256)
    return first_32, first_256


@dataclass(frozen=True, slots=True)
class NormPlan:
    """What `readers` of rows of one width read: (FORM_*, quantiser address, bytes a record), no quantiser where a form
    is not read. For one row: `steps` of `_one`, the buffer they fill, and (key, offset, bytes) of each record.
    """

    readers: tuple[Weight, ...]
    forms: tuple[tuple[int, int, int], ...]
    steps: np.ndarray
    buffer_bytes: int
    records: tuple[tuple[str, int, int], ...]


class NormPlans:
    """The plans of the readers that were used together, found again by identity: a plan keeps its weights alive."""

    def __init__(self, types: TypeTable) -> None:
        self.types = types
        self._plans: dict[tuple[int, ...], NormPlan] = {}

    def plan(self, readers: Sequence[Weight], n_cols: int) -> NormPlan:
        key = (n_cols, *map(id, readers))
        found = self._plans.get(key)
        if found is None:
            if len(self._plans) >= MAX_PLANS:
                self._plans.clear()
            self.types.require([reader.quant_type for reader in readers])
            wanted = {self.types.forms[reader.quant_type] for reader in readers}
            forms = tuple(
                (form, self.types.quantizers[form], record_bytes(form, n_cols)) if form in wanted else (form, 0, 0)
                for form in (FORM_Q8_32, FORM_Q8_256)
            )
            found = self._plans[key] = _new_plan(tuple(readers), forms)
        return found


def _new_plan(readers: tuple[Weight, ...], forms: tuple[tuple[int, int, int], ...]) -> NormPlan:
    steps, records, n_bytes = np.zeros((len(forms), 2), np.int64), [], 0
    for i, (form, quantizer, stride) in enumerate(forms):
        if quantizer:
            steps[i] = (quantizer, n_bytes)
            records.append((FORM_KEYS[form], n_bytes, stride))
            n_bytes += stride
    return NormPlan(readers, forms, steps, n_bytes + ALIGN, tuple(records))


def norm_with_forms(
    x: np.ndarray, weight: np.ndarray, eps: float, readers: Sequence[Weight], plans: NormPlans
) -> Activations:
    """RMS norm of C-contiguous float32 x [T, D] by weight [D], with the quantised forms that `readers` read."""
    if x.ndim != 2 or not x.flags.c_contiguous or weight.shape != x.shape[1:]:
        raise ValueError(f"a norm weight {weight.shape} for rows {x.shape}, which must be contiguous")
    n_rows, n_cols = x.shape
    a = Activations(new_rows(n_rows, n_cols))
    plan = plans.plan(readers, n_cols)
    if n_rows == 1:
        owner = OCTETS.take(plan.buffer_bytes)
        base = _one(x, weight, eps, a.x, plan.steps, owner)
        for key, offset, stride in plan.records:
            a.forms[key] = Form(base + offset, stride, owner)
        return a
    arguments: list[Any] = []
    for form, quantizer, stride in plan.forms:
        arguments += (quantizer, record_buffer(form, n_rows, n_cols) if quantizer else _NOTHING, stride)
    addresses = _parallel(x, weight, eps, a.x, *arguments, num_threads())
    for (form, quantizer, stride), first, owner in zip(plan.forms, addresses, arguments[1::3], strict=True):
        if quantizer:
            a.forms[FORM_KEYS[form]] = Form(first, stride, owner)
    return a
