"""Compile, or load from numba's cache, every kernel that a model needs, before its first token.

Each step runs ops on a few rows of zeros, so what is compiled is what will be called. Vector-IR functions are
compiled in every process (some ten milliseconds each); numba's code is kept in `__pycache__` beside the sources, in
NUMBA_CACHE_DIR, or in the user's cache directory where the sources are read-only.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numba.core.dispatcher import Dispatcher

from kernels.backend import DeltaRule, ExpertTable, RopeTable, RouterSpec, Weight
from kernels.grouping import group_by_expert
from kernels.quant_types import QuantType, row_bytes

if TYPE_CHECKING:
    from kernels.cpu.backend import CpuBackend

Progress = Callable[[str, int, int], None]
_WIDTH, _HEAD_DIM, _EXPERTS = 256, 64, 2
_TOKENS = (1, 12)  # one token, and enough to take the ways of many: _TOKENS[1] * 1 >= 4 * _EXPERTS


def compiled_in_this_process() -> int:
    """Numba functions that were compiled here rather than loaded from the cache, in all modules of kernels.cpu."""
    modules = [module for name, module in sys.modules.items() if name.startswith("kernels.cpu.")]
    found = {id(value): value for m in modules for value in vars(m).values() if isinstance(value, Dispatcher)}
    return sum(sum(d.stats.cache_misses.values()) for d in found.values())


def warm_up(
    backend: CpuBackend, quant_types: Collection[QuantType], progress: Progress | None, recurrent: bool = False
) -> bool:
    """Make the kernels for weights of `quant_types` ready, those of `recurrent` layers too where asked for; returns
    whether anything had to be compiled by numba.

    `progress(what, done, total)` is called before each step and once at the end.
    """
    before = compiled_in_this_process()
    wanted = sorted({*quant_types, QuantType.F32})
    steps = [(f"{t.name} dots", partial(_dots, backend, t)) for t in wanted]
    for n in _TOKENS:
        rows = "one token" if n == 1 else "many tokens"
        steps += [
            (f"linear, {rows}", partial(_linear, backend, wanted, n)),
            (f"attention, {rows}", partial(_attention, backend, n)),
            (f"experts, {rows}", partial(_experts, backend, wanted[0], n)),
        ]
        if recurrent:
            steps.append((f"recurrent layers, {rows}", partial(_recurrent, backend, n)))
    for done, (what, step) in enumerate(steps):
        if progress is not None:
            progress(what, done, len(steps))
        step()
    if progress is not None:
        progress("ready", len(steps), len(steps))
    return compiled_in_this_process() > before


def _zeros(backend: CpuBackend, quant_type: QuantType, n_rows: int) -> Weight:
    data = np.zeros(n_rows * row_bytes(quant_type, _WIDTH), np.uint8)
    return backend.weight(data, quant_type, n_rows, _WIDTH)


def _dots(backend: CpuBackend, quant_type: QuantType) -> None:
    backend.require_types([quant_type])


def _linear(backend: CpuBackend, quant_types: Collection[QuantType], n_tokens: int) -> None:
    x, ones = np.zeros((n_tokens, _WIDTH), np.float32), np.ones(_WIDTH, np.float32)
    for quant_type in quant_types:
        weights = tuple(_zeros(backend, quant_type, 32) for _ in range(3))
        backend.linear(backend.norm(x, ones, 1e-5, weights), *weights)
        backend.linear(backend.activations(x), weights[0])
    gate, up = (_zeros(backend, QuantType.F32, _WIDTH) for _ in range(2))
    backend.gated_mlp(backend.activations(x), gate, up, gate)


def _attention(backend: CpuBackend, n_tokens: int) -> None:
    heads, ones = _WIDTH // _HEAD_DIM, np.ones(_HEAD_DIM, np.float32)
    turns = np.ones((n_tokens, _HEAD_DIM // 2), np.float32)
    rope = RopeTable(turns, turns, _HEAD_DIM, False)
    cache = backend.kv_layer(heads, n_tokens, _HEAD_DIM, _HEAD_DIM, "f16", "f16")  # other types cost no numba compilation
    qkv = np.zeros((n_tokens, 3 * _WIDTH), np.float32)
    q, k, v = (qkv[:, i * _WIDTH : (i + 1) * _WIDTH] for i in range(3))
    backend.head_norm(q, ones, 1e-5)
    backend.rope_write(q, k, v, rope, 0, cache)
    backend.attention(q, cache, 0, heads, 1.0)


def _recurrent(backend: CpuBackend, n_tokens: int) -> None:
    heads, width = 2, 64
    constants = np.zeros(heads, np.float32)
    rule = DeltaRule(heads, heads, width, width, constants, constants, False)
    rows = np.zeros((n_tokens, 3 * heads * width), np.float32)
    kernel, state = np.zeros((2, rows.shape[1]), np.float32), np.zeros((1, rows.shape[1]), np.float32)
    qkv = backend.causal_conv(rows, kernel, state, True)
    gates = np.zeros((n_tokens, heads), np.float32)
    out = backend.delta_rule(qkv, gates, gates, rule, np.zeros((heads, width, width), np.float32))
    backend.sigmoid_gate(backend.gated_norm(out, rows[:, : heads * width], np.ones(width, np.float32), 1e-6), out)


def _experts(backend: CpuBackend, quant_type: QuantType, n_tokens: int) -> None:
    matrix = _zeros(backend, quant_type, _WIDTH)
    places = np.full(_EXPERTS, matrix.data.ctypes.data, np.int64)
    types = np.full(_EXPERTS, int(quant_type), np.uint8)
    table = ExpertTable(places, places, places, types, types, types, _WIDTH, _WIDTH)
    x = np.zeros((n_tokens, _WIDTH), np.float32)
    logits = np.zeros((n_tokens, _EXPERTS), np.float32)
    topk_ids, topk_weights = backend.route(logits, RouterSpec(_EXPERTS, 1))
    groups = group_by_expert(topk_ids)
    which = np.arange(groups.expert_ids.shape[0], dtype=np.int32)
    h, d = backend.pair_buffers(n_tokens, _WIDTH, _WIDTH)
    backend.expert_gate_up(backend.activations(x), table, groups, which, h)
    backend.expert_down(h, table, groups, which, d)
    backend.expert_combine(d, groups, topk_weights)
    backend.experts(backend.activations(x), table, topk_ids, topk_weights)
    backend.forget(table)
