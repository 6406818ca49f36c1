"""The ops that are timed: how each is set up for a shape and type, what it reads, and how its answer is checked.

An op of one token cycles over several copies of its weights, so that they come from memory and not from a cache. The
answer is compared with `kernels.reference` on a part of the output.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import cycle

import numpy as np

from kernels.backend import Backend, ExpertTable, RopeTable, Weight
from kernels.bench.blocks import random_blocks
from kernels.bench.shapes import Shape
from kernels.cpu.dots import DIRECT_TYPES
from kernels.grouping import group_by_expert
from kernels.quant_types import QuantType, row_bytes
from kernels.reference.attention import attention_ref
from kernels.reference.experts import expert_down_ref, expert_gate_up_ref
from kernels.reference.linear import linear_ref
from kernels.reference.norm import norm_ref
from kernels.reference.rope import rope_ref
from kernels.reference.router import route_ref
from kernels.router_spec import RouterSpec

COLD_BYTES = 160 << 20
"""Copies of an op's weights together, well beyond the last-level cache of the machines at hand (32 MiB)."""

PROMPT, DEPTH, LONG_DEPTH = 512, 4096, 8192
_CHECKED_ROWS = 48


@dataclass(frozen=True, slots=True)
class Case:
    """One op ready to be timed. `error` is the RMS error over the RMS of the reference, `limit` what it may be; `kept`
    holds memory that the op reaches through addresses only.
    """

    run: Callable[[], object]
    error: Callable[[], float]
    limit: float
    n_bytes: int
    n_flops: int = 0
    kept: object = None


EXACT, WHOLE_NUMBERS, QUANTISED = 1e-5, 1e-4, 0.02
"""Limits: float32 arithmetic; queries and weights rounded to 16 bits (over q8_0 keys and values); activations rounded
to 8 bits a block (0.5 % of the largest of 32 or 256)."""


def _rms_error(found: np.ndarray, expected: np.ndarray) -> float:
    difference = found.astype(np.float64) - expected
    return float(np.sqrt(np.mean(difference**2) / np.mean(expected**2)))


def _limit(quant_type: QuantType) -> float:
    return EXACT if quant_type in (QuantType.F32, QuantType.F16, QuantType.BF16) else QUANTISED


def _weight(backend: Backend, data: np.ndarray, quant_type: QuantType, n_cols: int) -> Weight:
    return backend.weight(data.reshape(-1), quant_type, data.shape[0], n_cols)


def _activations(n_tokens: int, width: int) -> np.ndarray:
    return np.random.default_rng(n_tokens).standard_normal((n_tokens, width), dtype=np.float32)


def _linear_case(backend: Backend, quant_type: QuantType, n_rows: int, n_cols: int, n_tokens: int) -> Case:
    data = random_blocks(np.random.default_rng(0), quant_type, n_rows, n_cols)
    copies = max(1, COLD_BYTES // data.nbytes) if n_tokens == 1 else 1
    weights = [_weight(backend, data.copy(), quant_type, n_cols) for _ in range(copies)]
    turn, x = cycle(weights), _activations(n_tokens, n_cols)

    def error() -> float:
        rows = np.linspace(0, n_rows - 1, _CHECKED_ROWS).astype(int)
        part = Weight(np.ascontiguousarray(data[rows]), quant_type, _CHECKED_ROWS, n_cols)
        found = backend.to_host(backend.linear(backend.activations(x), weights[-1]))[:, rows]
        return _rms_error(found, linear_ref(x, part))

    flops = 2 * n_tokens * n_rows * n_cols
    return Case(
        lambda: backend.linear(backend.activations(x), next(turn)), error, _limit(quant_type), data.nbytes, flops
    )


def qkv(backend: Backend, shape: Shape, quant_type: QuantType, n_tokens: int) -> Case:
    """Query, key and value projections as one matrix."""
    n_rows = (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim
    return _linear_case(backend, quant_type, n_rows, shape.hidden_size, n_tokens)


def output(backend: Backend, shape: Shape, quant_type: QuantType, n_tokens: int) -> Case:
    """The matrix to the vocabulary; of a prompt only the last token needs it."""
    return _linear_case(backend, quant_type, shape.vocab_size, shape.hidden_size, n_tokens)


def _expert_table(shape: Shape, quant_type: QuantType) -> tuple[ExpertTable, list[np.ndarray]]:
    """Every expert a copy of one set of blocks in a place of its own; the second value keeps the memory alive."""
    rng = np.random.default_rng(0)
    d, f = shape.hidden_size, shape.moe_intermediate_size
    kept = []
    for n_rows, n_cols in ((f, d), (f, d), (d, f)):
        data = random_blocks(rng, quant_type, n_rows, n_cols)
        kept.append(np.repeat(data.reshape(1, -1), shape.num_experts, axis=0))
    gate, up, down = (a.ctypes.data + np.arange(shape.num_experts, dtype=np.int64) * a.shape[1] for a in kept)
    types = np.full(shape.num_experts, int(quant_type), np.uint8)
    return ExpertTable(gate, up, down, types, types.copy(), types.copy(), d, f), kept


def experts(backend: Backend, shape: Shape, quant_type: QuantType, n_tokens: int) -> Case:
    """Gate, up, activation and down of all experts that the tokens chose, evenly at random, and their weighted sum."""
    table, kept = _expert_table(shape, quant_type)
    rng, k = np.random.default_rng(1), shape.num_experts_per_tok
    choices = [
        np.argsort(rng.random((n_tokens, shape.num_experts)), axis=1)[:, :k].astype(np.int32)
        for _ in range(16 if n_tokens == 1 else 1)
    ]
    turn = cycle([group_by_expert(ids) for ids in choices])
    x, topk_weights = 0.01 * _activations(n_tokens, shape.hidden_size), np.full((n_tokens, k), 1 / k, np.float32)

    def run() -> tuple[np.ndarray, np.ndarray]:
        groups = next(turn)
        which = np.arange(groups.expert_ids.shape[0], dtype=np.int32)
        h, d = backend.pair_buffers(groups.token_ids.shape[0], table.intermediate_size, table.hidden_size)
        backend.expert_gate_up(backend.activations(x), table, groups, which, h)
        backend.expert_down(h, table, groups, which, d)
        backend.expert_combine(d, groups, topk_weights)
        return h, d

    def error() -> float:
        groups = group_by_expert(choices[0])
        h, d = run() if n_tokens > 1 else _run_of(run, len(choices))
        first = np.arange(1, dtype=np.int32)
        rows = slice(0, int(groups.offsets[1]))
        expected_h, expected_d = np.empty(h.shape, np.float32), np.empty(d.shape, np.float32)
        expert_gate_up_ref(x, table, groups, first, expected_h)
        expert_down_ref(expected_h, table, groups, first, expected_d)
        return max(_rms_error(h[rows], expected_h[rows]), _rms_error(d[rows], expected_d[rows]))

    used = len(np.unique(choices[0]))
    n_bytes = used * sum(a.shape[1] for a in kept)
    flops = 2 * n_tokens * k * 3 * table.hidden_size * table.intermediate_size
    return Case(run, error, _limit(quant_type), n_bytes, flops, kept)


def _run_of(run: Callable[[], tuple[np.ndarray, np.ndarray]], n_choices: int) -> tuple[np.ndarray, np.ndarray]:
    """Run through all choices; every expert holds the same blocks, so any choice's first pair has the same answer."""
    for _ in range(n_choices - 1):
        run()
    return run()


def attention(backend: Backend, shape: Shape, quant_type: QuantType, n_tokens: int, depth: int = 0) -> Case:
    """One token at position `depth` (0: DEPTH) - 1, or a whole prompt, over a cache of the given type."""
    dtype = quant_type.name.lower()
    start = (depth or DEPTH) - 1 if n_tokens == 1 else 0
    length, width = start + n_tokens, shape.num_kv_heads * shape.head_dim
    one = backend.kv_layer(shape.num_kv_heads, length, shape.head_dim, shape.head_dim, dtype, dtype)
    n_bytes = one.k.nbytes + one.v.nbytes
    layers = [one]
    while n_tokens == 1 and len(layers) * n_bytes < COLD_BYTES:
        layers.append(backend.kv_layer(shape.num_kv_heads, length, shape.head_dim, shape.head_dim, dtype, dtype))
    rows = _activations(length, width)
    table = RopeTable(np.ones((length, 1), np.float32), np.zeros((length, 1), np.float32), 2, False)
    for layer in layers:
        backend.rope_write(np.zeros((length, shape.head_dim), np.float32), rows.copy(), rows, table, 0, layer)
    turn, q = cycle(layers), _activations(n_tokens, shape.num_heads * shape.head_dim)
    scale = shape.head_dim**-0.5

    def error() -> float:
        found = backend.to_host(backend.attention(q, one, start, shape.num_heads, scale))
        return _rms_error(found, attention_ref(q, one, start, shape.num_heads, scale))

    pairs = n_tokens * (start + 1) + n_tokens * (n_tokens - 1) // 2
    flops = 4 * pairs * shape.num_heads * shape.head_dim
    limit = WHOLE_NUMBERS if quant_type is QuantType.Q8_0 else EXACT
    return Case(lambda: backend.attention(q, next(turn), start, shape.num_heads, scale), error, limit, n_bytes, flops)


def norm(backend: Backend, shape: Shape, quant_type: QuantType, n_tokens: int) -> Case:
    """RMS norm of the hidden state."""
    x, weight = _activations(n_tokens, shape.hidden_size), _activations(1, shape.hidden_size)[0]
    return Case(
        lambda: backend.norm(x, weight, 1e-5),
        lambda: _rms_error(backend.to_host(backend.norm(x, weight, 1e-5).x), norm_ref(x, weight, 1e-5)),
        EXACT,
        x.nbytes + weight.nbytes,
    )


def rope(backend: Backend, shape: Shape, quant_type: QuantType, n_tokens: int) -> Case:
    """Rotate queries and keys and write the cache."""
    d, dtype = shape.head_dim, quant_type.name.lower()
    cache = backend.kv_layer(shape.num_kv_heads, n_tokens, d, d, dtype, dtype)
    angles = np.random.default_rng(0).random((n_tokens, d // 2))
    table = RopeTable(np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32), d, False)
    q, k, v = (_activations(n_tokens, n * d) for n in (shape.num_heads, shape.num_kv_heads, shape.num_kv_heads))

    def error() -> float:
        turned = q.copy()
        backend.rope_write(turned, k.copy(), v, table, 0, cache)
        return _rms_error(turned, rope_ref(q, table, 0, d))

    turned, keys = q.copy(), k.copy()  # turned again and again, lengths stay
    n_bytes = q.nbytes + k.nbytes + v.nbytes
    return Case(lambda: backend.rope_write(turned, keys, v, table, 0, cache), error, EXACT, n_bytes)


def route(backend: Backend, shape: Shape, quant_type: QuantType, n_tokens: int) -> Case:
    """Router logits to experts and weights."""
    logits, spec = _activations(n_tokens, shape.num_experts), RouterSpec(shape.num_experts, shape.num_experts_per_tok)

    def error() -> float:
        (ids, weights), (expected_ids, expected) = backend.route(logits, spec), route_ref(logits, spec)
        return float("inf") if (ids != expected_ids).any() else _rms_error(weights, expected)

    return Case(lambda: backend.route(logits, spec), error, EXACT, logits.nbytes)


Q = QuantType
_WEIGHTS = DIRECT_TYPES
_CACHES = (Q.F32, Q.F16, Q.Q8_0)

Build = Callable[[Backend, Shape, QuantType, int], Case]

OPS: dict[str, tuple[Build, tuple[QuantType, ...], int]] = {
    "qkv": (qkv, _WEIGHTS, 1),
    "output": (output, _WEIGHTS, 1),
    "experts": (experts, _WEIGHTS, 1),
    f"attention@{DEPTH}": (attention, _CACHES, 1),
    f"attention@{LONG_DEPTH}": (partial(attention, depth=LONG_DEPTH), _CACHES, 1),
    "norm": (norm, (Q.F32,), 1),
    "rope": (rope, _CACHES, 1),
    "route": (route, (Q.F32,), 1),
    f"qkv-{PROMPT}": (qkv, _WEIGHTS, PROMPT),
    f"experts-{PROMPT}": (experts, _WEIGHTS, PROMPT),
    f"attention-{PROMPT}": (attention, _CACHES, PROMPT),
}
"""Name -> (builder, types it takes, tokens of a call)."""


def fits(shape: Shape, quant_type: QuantType) -> bool:
    """Whether rows of the shape's widths divide into blocks of the type."""
    try:
        for n_cols in (shape.hidden_size, shape.moe_intermediate_size):
            row_bytes(quant_type, n_cols)
    except ValueError:
        return False
    return True
