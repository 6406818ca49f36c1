"""The compiled functions of layers that carry a state, run once on little data: part of `kernels.cpu.warmup`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from kernels.cpu import delta_chunks, scan_chunks
from kernels.delta_rule import DeltaRule
from kernels.selective_scan import SelectiveScan

if TYPE_CHECKING:
    from kernels.cpu.backend import CpuBackend

_HEADS, _WIDTH = 2, 64


def recurrent_steps(backend: CpuBackend, kinds: frozenset[str]) -> list[tuple[str, Callable[[], None]]]:
    """(what, what to run) for layers of these `kinds`: "causal_conv", "delta_rule", "selective_scan", each op for one
    token and for a prompt.
    """
    steps: list[tuple[str, Callable[[], None]]] = []
    for kind, run, many in (
        ("causal_conv", _conv, 2),
        ("delta_rule", _delta_rule, delta_chunks.MIN_TOKENS),
        ("selective_scan", _selective_scan, scan_chunks.MIN_TOKENS),
    ):
        if kind in kinds:
            steps += [(f"recurrent layers, {n} tokens", partial(run, backend, n)) for n in (1, many)]
    return steps


def _conv(backend: CpuBackend, n_tokens: int) -> None:
    rows = np.zeros((n_tokens, 3 * _HEADS * _WIDTH), np.float32)
    kernel, state = np.zeros((2, rows.shape[1]), np.float32), np.zeros((1, rows.shape[1]), np.float32)
    out, inner = backend.causal_conv(rows, kernel, state, True), _HEADS * _WIDTH
    gate, part = rows[:, :inner], out[:, :inner]
    backend.sigmoid_gate(backend.gated_norm(part, gate, np.ones(_WIDTH, np.float32), 1e-6), gate)


def _delta_rule(backend: CpuBackend, n_tokens: int) -> None:
    constants = np.zeros(_HEADS, np.float32)
    rule = DeltaRule(_HEADS, _HEADS, _WIDTH, _WIDTH, constants, constants, False)
    rows, gates = np.zeros((n_tokens, 3 * _HEADS * _WIDTH), np.float32), np.zeros((n_tokens, _HEADS), np.float32)
    backend.delta_rule(rows, gates, gates, rule, np.zeros((_HEADS, _WIDTH, _WIDTH), np.float32))


def _selective_scan(backend: CpuBackend, n_tokens: int) -> None:
    constants = np.zeros(_HEADS, np.float32)
    scan = SelectiveScan(1, _HEADS, _WIDTH, _WIDTH, constants, constants, constants)
    rows, steps = np.zeros((n_tokens, 4 * _WIDTH), np.float32), np.zeros((n_tokens, _HEADS), np.float32)
    backend.selective_scan(rows, steps, scan, np.zeros((_HEADS, _WIDTH, _WIDTH), np.float32))
