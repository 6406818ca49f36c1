"""RMS norm and the quantised forms that its readers need, in one compiled call."""

from __future__ import annotations

from collections.abc import Sequence
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
_SERIAL_ROWS = 4  # up to this many rows one thread is faster than waking the others


@njit(nogil=True, cache=True)
def _row(i, x, weight, eps, out, quantize_32, first_32, stride_32, quantize_256, first_256, stride_256):
    norm_row(x[i], weight, eps, out[i])
    at, n_cols = address(out) + i * 4 * x.shape[1], x.shape[1]
    if quantize_32:
        quantize_row(quantize_32, at, first_32 + i * stride_32, n_cols)
    if quantize_256:
        quantize_row(quantize_256, at, first_256 + i * stride_256, n_cols)


@njit(nogil=True, cache=True)
def _serial(x, weight, eps, out, quantize_32, buffer_32, stride_32, quantize_256, buffer_256, stride_256):
    first_32, first_256 = aligned_address(buffer_32), aligned_address(buffer_256)
    for i in range(x.shape[0]):
        _row(i, x, weight, eps, out, quantize_32, first_32, stride_32, quantize_256, first_256, stride_256)
    return first_32, first_256


@njit(nogil=True, cache=True, parallel=True)
def _parallel(x, weight, eps, out, quantize_32, buffer_32, stride_32, quantize_256, buffer_256, stride_256, n_parts):
    first_32, first_256 = aligned_address(buffer_32), aligned_address(buffer_256)
    for part in prange(n_parts):
        for i in range(part * x.shape[0] // n_parts, (part + 1) * x.shape[0] // n_parts):
            _row(i, x, weight, eps, out, quantize_32, first_32, stride_32, quantize_256, first_256, stride_256)
    return first_32, first_256


def norm_with_forms(
    x: np.ndarray, weight: np.ndarray, eps: float, readers: Sequence[Weight], types: TypeTable
) -> Activations:
    """RMS norm of C-contiguous float32 x [T, D] by weight [D], with the quantised forms that `readers` read."""
    if x.ndim != 2 or not x.flags.c_contiguous or weight.shape != x.shape[1:]:
        raise ValueError(f"a norm weight {weight.shape} for rows {x.shape}, which must be contiguous")
    n_rows, n_cols = x.shape
    a = Activations(np.empty((n_rows, n_cols), np.float32))
    types.require([reader.quant_type for reader in readers])
    wanted = {types.forms[reader.quant_type] for reader in readers}
    arguments: list[Any] = []
    for form in (FORM_Q8_32, FORM_Q8_256):
        if form in wanted:
            arguments += [types.quantizers[form], record_buffer(form, n_rows, n_cols), record_bytes(form, n_cols)]
        else:
            arguments += [0, _NOTHING, 0]
    if n_rows <= _SERIAL_ROWS:
        addresses = _serial(x, weight, eps, a.x, *arguments)
    else:
        addresses = _parallel(x, weight, eps, a.x, *arguments, num_threads())
    for form in wanted & {FORM_Q8_32, FORM_Q8_256}:
        _, owner, stride = arguments[3 * form - 3 : 3 * form]
        a.forms[FORM_KEYS[form]] = Form(addresses[form - 1], stride, owner)
    return a
