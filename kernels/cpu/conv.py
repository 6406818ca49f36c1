"""Causal convolution of each channel on its own over the inputs of earlier calls and this one."""

from __future__ import annotations

import numpy as np
from numba import njit, prange

from kernels.cpu.addresses import address
from kernels.cpu.float_rows import float_row
from kernels.cpu.gates import sigmoid_gate_function
from kernels.cpu.native_call import call_native
from kernels.cpu.recycled import new_rows

_NO_BIAS = np.empty(0, np.float32)


@njit(nogil=True, cache=True)
def _token(t, x, x_stride, kernel, bias, state, silu, out):
    """Row t of `out`, from the `bias` on, which is empty where there is none. Sums go from the oldest input to the
    newest, so a call's length changes no bit.
    """
    n_kept, width = state.shape
    row = out[t]
    if bias.shape[0]:
        row[:] = bias
    else:
        row[:] = 0.0
    for j in range(n_kept + 1):
        source, weights = t + j - n_kept, kernel[j]
        inputs = float_row(x + source * x_stride, width) if source >= 0 else state[t + j]
        for c in range(width):
            row[c] += weights[c] * inputs[c]
    if silu:
        call_native(silu, address(row), address(row), width)


@njit(nogil=True, cache=True)
def _keep(x, x_stride, n_tokens, state):
    n_kept, width = state.shape
    for i in range(n_kept):
        source = n_tokens + i - n_kept
        state[i] = float_row(x + source * x_stride, width) if source >= 0 else state[n_tokens + i]


@njit(nogil=True, cache=True)
def _one(x, kernel, bias, state, silu, out):
    _token(0, address(x), 0, kernel, bias, state, silu, out)
    _keep(address(x), 0, 1, state)


@njit(nogil=True, cache=True, parallel=True)
def _many(x, x_stride, kernel, bias, state, silu, out):
    for t in prange(out.shape[0]):
        _token(t, x, x_stride, kernel, bias, state, silu, out)
    _keep(x, x_stride, out.shape[0], state)


def causal_conv(
    x: np.ndarray, kernel: np.ndarray, state: np.ndarray, silu: bool, bias: np.ndarray | None = None
) -> np.ndarray:
    """See `RecurrentOps.causal_conv`: fresh float32 [T, C]; mutates `state`. Rows of x may lie apart.

    Raises ValueError for shapes that do not fit each other.
    """
    n_tokens, width = x.shape
    if kernel.shape != (state.shape[0] + 1, width) or state.shape[1] != width or x.strides[1] != 4:
        raise ValueError(f"a convolution by {kernel.shape} over a state {state.shape} and rows {x.shape}")
    if bias is not None and bias.shape != (width,):
        raise ValueError(f"a convolution of {width} channels with a bias {bias.shape}")
    out, added = new_rows(n_tokens, width), _NO_BIAS if bias is None else bias
    function = sigmoid_gate_function() if silu else 0
    if n_tokens == 1:
        _one(x, kernel, added, state, function, out)
    else:
        _many(x.ctypes.data, x.strides[0], kernel, added, state, function, out)
    return out
