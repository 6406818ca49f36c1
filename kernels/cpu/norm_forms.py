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
    FORM_KEYS,
    FORM_Q8_32,
    FORM_Q8_256,
    Form,
    quantize_row,
    record_buffer,
    record_bytes,
)
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
def _one(x, weight, eps, out, quantize_32, buffer_32, stride_32, quantize_256, buffer_256, stride_256):
    first_32, first_256 = aligned_address(buffer_32), aligned_address(buffer_256)
    _row(0, x, weight, eps, out, quantize_32, first_32, stride_32, quantize_256, first_256, stride_256)
    return first_32, first_256


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
    is not read.
    """

    readers: tuple[Weight, ...]
    forms: tuple[tuple[int, int, int], ...]


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
            found = self._plans[key] = NormPlan(tuple(readers), forms)
        return found


def norm_with_forms(
    x: np.ndarray, weight: np.ndarray, eps: float, readers: Sequence[Weight], plans: NormPlans
) -> Activations:
    """RMS norm of C-contiguous float32 x [T, D] by weight [D], with the quantised forms that `readers` read."""
    if x.ndim != 2 or not x.flags.c_contiguous or weight.shape != x.shape[1:]:
        raise ValueError(f"a norm weight {weight.shape} for rows {x.shape}, which must be contiguous")
    n_rows, n_cols = x.shape
    a = Activations(np.empty((n_rows, n_cols), np.float32))
    forms = plans.plan(readers, n_cols).forms
    arguments: list[Any] = []
    for form, quantizer, stride in forms:
        arguments += (quantizer, record_buffer(form, n_rows, n_cols) if quantizer else _NOTHING, stride)
    if n_rows == 1:
        addresses = _one(x, weight, eps, a.x, *arguments)
    else:
        addresses = _parallel(x, weight, eps, a.x, *arguments, num_threads())
    for (form, quantizer, stride), first, owner in zip(forms, addresses, arguments[1::3], strict=True):
        if quantizer:
            a.forms[FORM_KEYS[form]] = Form(first, stride, owner)
    return a
