"""Compile, or load from numba's cache, every kernel that a model needs, before its first token.

Each step runs ops on a few rows of zeros, so what is compiled is what will be called. Vector-IR functions are
compiled in every process (some ten milliseconds each); numba's code is kept in `__pycache__` beside the sources, in
NUMBA_CACHE_DIR, or in the user's cache directory where the sources are read-only.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numba.core.dispatcher import Dispatcher

from kernels.backend import ExpertTable, RopeTable, Weight
from kernels.cpu.compiling_process import CompilingProcess
from kernels.cpu.parallel import max_threads
from kernels.cpu.warmup_recurrent import recurrent_steps
from kernels.quant_types import QuantType, row_bytes
from kernels.router_spec import RouterSpec
from kernels.whole_layer import experts_by_steps

if TYPE_CHECKING:
    from kernels.cpu.backend import CpuBackend

_log = logging.getLogger("pearl.kernels")

Progress = Callable[[str, int, int], None]
_WIDTH, _HEAD_DIM, _EXPERTS = 256, 64, 2
_MANY = 12  # tokens, enough to take the ways of many: at least 4 * _EXPERTS


def compiled_in_this_process() -> int:
    """Numba functions that were compiled here rather than loaded from the cache, in all modules of kernels.cpu."""
    modules = [module for name, module in sys.modules.items() if name.startswith("kernels.cpu.")]
    found = {id(value): value for m in modules for value in vars(m).values() if isinstance(value, Dispatcher)}
    return sum(sum(d.stats.cache_misses.values()) for d in found.values())


def warm_up(
    backend: CpuBackend, quant_types: Collection[QuantType], progress: Progress | None, recurrent: Collection[str] = ()
) -> bool:
    """Make the kernels for weights of `quant_types` ready, and the ops of `recurrent` layers that are named; returns
    whether anything had to be compiled by numba.

    `progress(what, done, total)` is called before each step and once at the end. Where the first step finds nothing in
    the cache and there is a second core, another process compiles half of the rest meanwhile.
    """
    before = compiled_in_this_process()
    wanted = sorted({*quant_types, QuantType.F32})
    dots = [(f"{t.name} dots", partial(_dots, backend, t)) for t in wanted]
    steps: list[tuple[str, Callable[[], None]]] = [
        ("norm", partial(_norm, backend)),
        *dots,
        ("linear, one token", partial(_linear, backend, wanted, 1)),
        ("attention, one token", partial(_attention, backend, 1)),
        ("experts, one token", partial(_whole_layer, backend, wanted[0])),
        *reversed(_later_steps(backend, wanted)),  # the other process comes from the other end
    ]
    steps += recurrent_steps(backend, frozenset(recurrent))
    helper = None
    try:
        for done, (what, step) in enumerate(steps):
            if progress is not None:
                progress(what, done, len(steps))
            step()
            if done == 0 and compiled_in_this_process() > before and max_threads() > 1:
                helper = _helper(wanted)
    finally:
        if helper is not None:
            helper.stop()
    if progress is not None:
        progress("ready", len(steps), len(steps))
    return compiled_in_this_process() > before


def compile_later_steps(quant_types: Collection[int]) -> None:
    """The work of `CompilingProcess`: kernels that the first token does not need, into numba's cache."""
    from kernels.cpu.backend import CpuBackend

    for _, step in _later_steps(CpuBackend(1), [QuantType(t) for t in quant_types]):
        step()


def _helper(quant_types: Collection[QuantType]) -> CompilingProcess | None:
    try:
        return CompilingProcess(quant_types)
    except OSError as error:
        _log.info("no second process to compile with: %s", error)
        return None


def _later_steps(backend: CpuBackend, quant_types: Sequence[QuantType]) -> list[tuple[str, Callable[[], None]]]:
    return [
        ("experts as they come", partial(_experts, backend, quant_types[0], 1)),
        ("linear, many tokens", partial(_linear, backend, quant_types, _MANY)),
        ("experts, many tokens", partial(_experts, backend, quant_types[0], _MANY)),
        ("attention, many tokens", partial(_attention, backend, _MANY)),
    ]


def _norm(backend: CpuBackend) -> None:
    ones = np.ones(_WIDTH, np.float32)
    backend.norm(ones.reshape(1, -1), ones, 1e-5)


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
    # other types of cache cost no numba compilation
    cache = backend.kv_layer(heads, n_tokens, _HEAD_DIM, _HEAD_DIM, "f16", "f16")
    qkv = np.zeros((n_tokens, 3 * _WIDTH), np.float32)
    q, k, v = (qkv[:, i * _WIDTH : (i + 1) * _WIDTH] for i in range(3))
    backend.head_norm(q, ones, 1e-5)
    backend.rope_write(q, k, v, rope, 0, cache)
    backend.attention(q, cache, 0, heads, 1.0)


def _table(backend: CpuBackend, quant_type: QuantType) -> tuple[ExpertTable, Weight]:
    """A slot table of _EXPERTS times one matrix of zeros, and that matrix, which must be kept."""
    matrix = _zeros(backend, quant_type, _WIDTH)
    places = np.full(_EXPERTS, matrix.data.ctypes.data, np.int64)
    types = np.full(_EXPERTS, int(quant_type), np.uint8)
    return ExpertTable(places, places, places, types, types, types, _WIDTH, _WIDTH), matrix


def _routed(backend: CpuBackend, n_tokens: int) -> tuple[np.ndarray, np.ndarray]:
    return backend.route(np.zeros((n_tokens, _EXPERTS), np.float32), RouterSpec(_EXPERTS, 1))


def _whole_layer(backend: CpuBackend, quant_type: QuantType) -> None:
    table, _matrix = _table(backend, quant_type)
    backend.experts(backend.activations(np.zeros((1, _WIDTH), np.float32)), table, *_routed(backend, 1))
    backend.forget(table)


def _experts(backend: CpuBackend, quant_type: QuantType, n_tokens: int) -> None:
    table, _matrix = _table(backend, quant_type)
    x = np.zeros((n_tokens, _WIDTH), np.float32)
    topk_ids, topk_weights = _routed(backend, n_tokens)
    experts_by_steps(backend, backend.activations(x), table, topk_ids, topk_weights)
    backend.forget(table)
