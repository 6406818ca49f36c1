"""One call of every kernel, for every quant type that it takes, as `kernels.gpu.compile_matrix` compiles them.

Cases go through `GpuBackend`, with the sizes of OLMoE's layers unless they say otherwise. Tensors hold nothing: no
kernel runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from kernels.backend import SILU, Activations, ExpertBiases, ExpertTable, GatedUnit, KVLayer, RopeTable, Weight
from kernels.delta_rule import DeltaRule
from kernels.gpu.backend import GpuBackend
from kernels.gpu.tiling import SLOTS
from kernels.grouping import group_by_expert
from kernels.quant_types import QuantType, row_bytes
from kernels.router_spec import RouterSpec
from kernels.selective_scan import SelectiveScan

HIDDEN, WIDTH, EXPERTS, PER_TOKEN = 2048, 1024, 64, 8
PROMPT = 512


@dataclass(frozen=True, slots=True)
class Case:
    """`launch` makes the launches of `op` for `variant`: a quant type or a setting."""

    op: str
    variant: str
    launch: Callable[[GpuBackend], object]


def _weight(quant_type: QuantType, n_rows: int = HIDDEN, n_cols: int = HIDDEN) -> Weight:
    data = torch.empty((n_rows, row_bytes(quant_type, n_cols)), dtype=torch.uint8)
    return Weight(data, quant_type, n_rows, n_cols)


def _linear(quant_type: QuantType, n_tokens: int, b: GpuBackend) -> None:
    b.linear(Activations(torch.empty((n_tokens, HIDDEN))), _weight(quant_type))


def _embed(quant_type: QuantType, b: GpuBackend) -> None:
    b.embed(_weight(quant_type), np.zeros(1, np.int64))


def _table(quant_type: QuantType, unit: GatedUnit, biased: bool, other: QuantType | None = None) -> ExpertTable:
    kinds = np.full(EXPERTS, int(quant_type), np.uint8)
    if other is not None:
        kinds[::2] = int(other)
    gate, up, down = (np.full(EXPERTS, 4096, np.int64) for _ in range(3))
    biases = ExpertBiases(*(torch.empty((EXPERTS, n)) for n in (WIDTH, WIDTH, HIDDEN))) if biased else None
    return ExpertTable(gate, up, down, kinds, kinds.copy(), kinds.copy(), HIDDEN, WIDTH, unit, biases)


def _experts(
    quant_type: QuantType, n_tokens: int, b: GpuBackend, unit: GatedUnit = SILU, biased: bool = False,
    other: QuantType | None = None,
) -> None:  # fmt: skip
    """`other`: the type of every second expert."""
    ids = np.stack([(np.arange(PER_TOKEN) + t) % EXPERTS for t in range(n_tokens)]).astype(np.int32)
    groups, table = group_by_expert(ids), _table(quant_type, unit, biased, other)
    h, d = b.pair_buffers(ids.size, WIDTH, HIDDEN)
    which = np.arange(groups.expert_ids.size, dtype=np.int32)
    b.expert_gate_up(Activations(torch.empty((n_tokens, HIDDEN))), table, groups, which, h)
    b.expert_down(h, table, groups, which, d)
    weights = torch.empty((n_tokens, PER_TOKEN))
    b.expert_combine(d, groups, weights)
    if n_tokens == 1:
        b.expert_down_combine(h, table, groups, weights)


def _attention(
    kind: str, n_tokens: int, b: GpuBackend, heads: int = 16, kv_heads: int = 16, dim: int = 128, value_dim: int = 128,
    window: int = 0, biased: bool = False,
) -> None:  # fmt: skip
    cache = b.kv_layer(kv_heads, 4096, dim, value_dim, kind, kind)
    if window:
        cache = KVLayer(cache.k, cache.v, kind, kind, ring=True)
    q = torch.empty((n_tokens, heads * dim))
    b.attention(q, cache, 1024, heads, 0.1, window, torch.empty(heads) if biased else None)


def _rope(kind: str, b: GpuBackend, interleaved: bool = False, dim: int = 128) -> None:
    cache = b.kv_layer(4, 4096, dim, dim, kind, kind)
    table = RopeTable(torch.empty((4096, dim // 2)), torch.empty((4096, dim // 2)), dim, interleaved)
    b.rope_write(torch.empty((1, 16 * dim)), torch.empty((1, 4 * dim)), torch.empty((1, 4 * dim)), table, 3, cache)


def _norms(b: GpuBackend) -> None:
    x = torch.empty((2, HIDDEN))
    b.norm(x, torch.empty(HIDDEN), 1e-6)
    b.head_norm(x, torch.empty(128), 1e-6)
    b.layer_norm(x, torch.empty(HIDDEN), torch.empty(HIDDEN), 1e-6)
    b.gated_norm(x, torch.empty_like(x), torch.empty(128), 1e-6)


def _route(spec: RouterSpec, biased: bool, b: GpuBackend) -> None:
    bias = torch.empty(spec.num_experts) if biased else None
    b.route_on_device(torch.empty((1, spec.num_experts)), spec, bias)


def _hybrid(b: GpuBackend) -> None:
    heads, dim = 32, 128
    rule = DeltaRule(16, heads, dim, dim, torch.empty(heads), torch.empty(heads), True)
    channels = (2 * 16 + heads) * dim
    for n_tokens in (1, PROMPT):
        b.causal_conv(torch.empty((n_tokens, channels)), torch.empty((4, channels)), torch.empty((3, channels)), True)
    gates, qkv = torch.empty((1, heads)), torch.empty((1, channels))
    b.delta_rule(qkv, gates, gates.clone(), rule, torch.empty((heads, dim, dim)))
    for width in (HIDDEN, 1):
        b.sigmoid_gate(torch.empty((1, HIDDEN)), torch.empty((1, width)))


def _mamba(b: GpuBackend) -> None:
    """Granite 4.0 H Tiny's, with a group more."""
    heads, dim, state_size, groups = 48, 64, 128, 2
    scan = SelectiveScan(groups, heads, state_size, dim, *(torch.empty(heads) for _ in range(3)))
    channels = heads * dim + 2 * groups * state_size
    bias = torch.empty(channels)
    for n_tokens in (1, PROMPT):
        rows, kernel = torch.empty((n_tokens, channels)), torch.empty((4, channels))
        b.causal_conv(rows, kernel, torch.empty((3, channels)), True, bias)
    b.selective_scan(rows[:1], torch.empty((1, heads)), scan, torch.empty((heads, state_size, dim)))


def _typed() -> Iterator[Case]:
    for t in SLOTS:
        for n_tokens in (1, 8, PROMPT):
            yield Case(f"linear, {n_tokens} tokens", t.name, partial(_linear, t, n_tokens))
            yield Case(f"experts, {n_tokens} tokens", t.name, partial(_experts, t, n_tokens))
        yield Case("embed", t.name, partial(_embed, t))


def _untyped() -> Iterator[Case]:
    clamped = GatedUnit("clamped", 1.702, 7.0)
    for n_tokens in (1, PROMPT):
        case = partial(_experts, QuantType.MXFP4, n_tokens, unit=clamped, biased=True)
        yield Case(f"experts, {n_tokens} tokens", "MXFP4 with biases, clamped", case)
        mixed = partial(_experts, QuantType.Q4_K, n_tokens, other=QuantType.Q6_K)
        yield Case(f"experts, {n_tokens} tokens", "Q4_K and Q6_K", mixed)
        for kind in ("f32", "f16", "q8_0"):
            yield Case(f"attention, {n_tokens} tokens", f"{kind}, 16 heads", partial(_attention, kind, n_tokens))
            shared = partial(_attention, kind, n_tokens, heads=32, kv_heads=4)
            yield Case(f"attention, {n_tokens} tokens", f"{kind}, 32 heads over 4", shared)
        latent = partial(_attention, "f16", n_tokens, heads=16, kv_heads=1, dim=576, value_dim=512)
        yield Case(f"attention, {n_tokens} tokens", "f16, latent 576", latent)
        ring = partial(_attention, "f16", n_tokens, heads=64, kv_heads=8, dim=64, value_dim=64, window=128, biased=True)
        yield Case(f"attention, {n_tokens} tokens", "f16, ring and sinks", ring)
    for kind in ("f32", "f16", "q8_0"):
        yield Case("rope and KV write", kind, partial(_rope, kind))
    yield Case("rope and KV write", "f16, interleaved 576", partial(_rope, "f16", interleaved=True, dim=576))
    yield Case("norms", "", _norms)
    yield Case("router", "softmax 64", partial(_route, RouterSpec(64, 8), False))
    grouped = RouterSpec(256, 8, "sigmoid", True, 2.5, 8, 4)
    yield Case("router", "sigmoid, biased, groups of 256", partial(_route, grouped, True))
    yield Case("router", "softmax over the chosen of 128", partial(_route, RouterSpec(128, 4, "softmax_topk"), True))
    yield Case("hybrid layers", "", _hybrid)
    yield Case("Mamba-2 layers", "", _mamba)


CASES: tuple[Case, ...] = (*_typed(), *_untyped())
