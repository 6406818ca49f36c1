"""Kernels are compiled before outputs are poisoned:

numba resolves `np.empty` when it compiles, and must find numpy's own.
"""

from __future__ import annotations

import numpy as np
import pytest

from kernels.backend import RopeTable
from kernels.cpu import recycled
from kernels.cpu.backend import CpuBackend
from kernels.quant_types import QuantType


@pytest.fixture(scope="session")
def compiled() -> None:
    """What a model with F32 weights runs, and attention over the f32 cache that only tests use."""
    backend = CpuBackend()
    backend.warmup({QuantType.F32}, recurrent=("causal_conv", "delta_rule", "selective_scan"))
    heads, width = 2, 64
    turns = np.ones((12, width // 2), np.float32)
    for n_tokens in (1, 12):
        rows = np.zeros((n_tokens, heads * width), np.float32)
        cache = backend.kv_layer(heads, n_tokens, width, width, "f32", "f32")
        backend.rope_write(rows, rows.copy(), rows.copy(), RopeTable(turns, turns, width, False), 0, cache)
        backend.attention(rows, cache, 0, heads, 1.0)


@pytest.fixture
def nan_poison(compiled: None, nan_poison: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The suite's own fixture, after everything has been compiled; rows of one token are fresh ones too."""
    monkeypatch.setattr(recycled, "KEPT", 0)
    recycled.FLOATS.clear()
    recycled.OCTETS.clear()
