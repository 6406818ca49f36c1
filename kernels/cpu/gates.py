"""Outputs weighed by a gate of their own width: a sigmoid's, or SiLU's behind an RMS norm of each head. In place."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, prange

from kernels.cpu.addresses import address
from kernels.cpu.float_math import emit_sigmoid_divisor, for_lanes
from kernels.cpu.float_rows import float_row
from kernels.cpu.native import address_of
from kernels.cpu.native_call import call_native
from kernels.cpu.norm import norm_row
from kernels.cpu.vector_ir import F32, Emitter, vec


def _emit_gate(e: Emitter, x: Any, gate: Any, n: Any, by_silu: bool) -> None:
    """x[i] *= sigmoid(gate[i]), times gate[i] too where `by_silu`, for n >= 1 float32; x may be gate."""

    def step(lanes: int, at: Any) -> None:
        place = e.b.add(x, at)
        value, g = (e.load(p, vec(F32, lanes), 4) for p in (place, e.b.add(gate, at)))
        over = emit_sigmoid_divisor(e, g)
        weighed = e.b.fmul(e.b.fdiv(g, over), value) if by_silu else e.b.fdiv(value, over)
        e.store(weighed, place, 4)

    for_lanes(e, n, step)


def emit_sigmoid_gate(e: Emitter, x: Any, gate: Any, n: Any) -> None:
    """x[i] = x[i] / (1 + e^-gate[i]); with gate = x this is silu(x)."""
    _emit_gate(e, x, gate, n, by_silu=False)


def emit_silu_gate(e: Emitter, x: Any, gate: Any, n: Any) -> None:
    """x[i] = gate[i] / (1 + e^-gate[i]) * x[i]."""
    _emit_gate(e, x, gate, n, by_silu=True)


def sigmoid_gate_function() -> int:
    """Address of `void sigmoid_gate(x, gate, n)`."""
    return address_of("sigmoid_gate", 3, emit_sigmoid_gate)


@njit(nogil=True, cache=True, parallel=True)
def _gate_rows(function, x, x_stride, gate, gate_stride, n_tokens, width):
    for t in prange(n_tokens):
        call_native(function, x + t * x_stride, gate + t * gate_stride, width)


@njit(nogil=True, cache=True)
def _gate_one(function, x, gate, width):
    call_native(function, x, gate, width)


@njit(nogil=True, cache=True)
def _norm_and_gate(function, x, gate, width, weight, eps):
    size = weight.shape[0]
    for first in range(0, width, size):
        run = float_row(x + 4 * first, size)
        norm_row(run, weight, eps, run)
        call_native(function, x + 4 * first, gate + 4 * first, size)


@njit(nogil=True, cache=True, parallel=True)
def _norm_rows(function, x, x_stride, gate, gate_stride, n_tokens, width, weight, eps):
    for t in prange(n_tokens):
        _norm_and_gate(function, x + t * x_stride, gate + t * gate_stride, width, weight, eps)


@njit(nogil=True, cache=True)
def _norm_one(function, x, gate, width, weight, eps):
    _norm_and_gate(function, address(x), address(gate), width, weight, eps)


def _check(x: np.ndarray, gate: np.ndarray) -> None:
    if x.shape != gate.shape or x.strides[1] != 4 or gate.strides[1] != 4:
        raise ValueError(f"rows {x.shape} weighed by {gate.shape}: both must be rows of contiguous float32")


def sigmoid_gate(x: np.ndarray, gate: np.ndarray) -> np.ndarray:
    """x * sigmoid(gate) in place for float32 x [T, N] and gate [T, N], or [T, 1] for whole rows; returns x. Rows may
    lie apart.
    """
    if gate.shape[1] == 1:  # so few that numpy does them
        x *= np.exp(-np.logaddexp(np.float32(0), -gate))
        return x
    _check(x, gate)
    function, (n_tokens, width) = sigmoid_gate_function(), x.shape
    if n_tokens == 1:
        _gate_one(function, x.ctypes.data, gate.ctypes.data, width)
    else:
        _gate_rows(function, x.ctypes.data, x.strides[0], gate.ctypes.data, gate.strides[0], n_tokens, width)
    return x


def gated_norm(x: np.ndarray, gate: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    """RMS norm in place over each run of len(weight) in the rows of float32 x [T, n * len(weight)], times silu(gate);
    returns x. Rows may lie apart. Raises ValueError where the runs do not divide a row.
    """
    _check(x, gate)
    n_tokens, width = x.shape
    if width % weight.shape[0]:
        raise ValueError(f"a norm weight {weight.shape} for rows {x.shape}")
    function = address_of("silu_gate", 3, emit_silu_gate)
    if n_tokens == 1:
        _norm_one(function, x, gate, width, weight, eps)
    else:
        rows = (x.ctypes.data, x.strides[0], gate.ctypes.data, gate.strides[0])
        _norm_rows(function, *rows, n_tokens, width, weight, eps)
    return x
