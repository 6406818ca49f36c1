"""Every op of `GpuBackend` against the reference, on whatever device the backend computes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from kernels.backend import Activations, ExpertTable, RopeTable, Weight
from kernels.delta_rule import DeltaRule
from kernels.gpu.tiling import SLOTS
from kernels.grouping import group_by_expert
from kernels.quant_types import QuantType
from kernels.reference.backend import ReferenceBackend
from kernels.router_spec import RouterSpec
from kernels.selective_scan import SelectiveScan
from models.config import RopeConfig
from models.rope import build_rope_table
from tests.quant_blocks import random_rows

FLOAT32 = 2e-5  # sums of some thousand products in float32, over the largest value
TF32 = 5e-3  # tensor cores round factors to 11 bits; prompts only
RECURRENT = 1e-4  # a state in float32 that is rounded at every token
HALF = 2e-3  # keys and values were stored in 16 bits, whose rounding of equal inputs may differ by one unit
Q8_CACHE = 2e-2  # and in blocks of 8 bits
OTHERS = "others"


@dataclass(frozen=True)
class Check:
    """error: largest difference over the largest value of the reference; fault: what was raised instead, if at all."""

    op: str
    n_tokens: int
    error: float
    limit: float
    fault: str = ""

    @property
    def ok(self) -> bool:
        return not self.fault and self.error <= self.limit


def checks_of_type(gpu: Any, quant_type: QuantType, large: bool) -> Iterator[Check]:
    """What reads weights. large: shapes of real models; else small ones, for Triton's interpreter."""
    hidden, width, n_rows = (2048, 768, 1000) if large else (256, 256, 40)
    for n_tokens in (1, 5, 64) if large else (1, 40):
        yield from tried("linear", n_tokens, lambda n=n_tokens: [_linear(gpu, quant_type, n, n_rows, hidden)])
        yield from tried("experts", n_tokens, lambda n=n_tokens: _experts(gpu, quant_type, n, hidden, width))


def other_checks(gpu: Any, large: bool) -> Iterator[Check]:
    """What reads no weights, or F32 alone."""
    for n_tokens in (1, 5, 64) if large else (1, 40):
        yield from tried("norms, embed", n_tokens, lambda n=n_tokens: _rows(gpu, n, 2048 if large else 256))
        sizes = (16, 32, 128) if large else (2, 4, 16)
        yield from tried("hybrid layers", n_tokens, lambda n=n_tokens, s=sizes: _hybrid(gpu, n, *s))
        scan = (2, 48, 128, 64) if large else (2, 4, 16, 8)
        yield from tried("Mamba-2 layers", n_tokens, lambda n=n_tokens, s=scan: _mamba(gpu, n, *s))
    for kind, limit in (("f32", FLOAT32), ("f16", HALF), ("q8_0", Q8_CACHE)):
        length = 200 if large else 20
        yield from tried(f"attention {kind}", length, lambda k=kind, m=limit, n=length: _attention(gpu, k, m, n))
    routers = [
        *((RouterSpec(64, 6, gating, gating == "softmax"), False) for gating in ("softmax", "sigmoid", "softmax_topk")),
        (RouterSpec(64, 6, "sigmoid", True, 2.5, 8, 3), True),
        (RouterSpec(16, 2, "sparsemixer", mixer_threshold=0.3), False),
    ]
    for spec, biased in routers:
        yield from tried(f"router {spec.gating}", 33, lambda s=spec, b=biased: [_router(gpu, s, b)])


def tried(op: str, n_tokens: int, work: Callable[[], Iterable[Check]]) -> Iterator[Check]:
    """The checks of `work`; where it raises, that is a check that fails, and the others go on."""
    try:
        yield from work()
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        yield Check(op, n_tokens, float("inf"), 0.0, f"{type(error).__name__}: {lines[0][:200]}")


def checks_of_group(gpu: Any, group: str, large: bool) -> Iterator[Check]:
    """`group`: one of `groups()`."""
    return other_checks(gpu, large) if group == OTHERS else checks_of_type(gpu, QuantType[group], large)


def groups() -> list[str]:
    """What can be checked apart from the rest: a quant type's name, or OTHERS."""
    return [*(kind.name for kind in SLOTS), OTHERS]


def _check(op: str, n_tokens: int, got: np.ndarray, want: np.ndarray, limit: float) -> Check:
    difference = np.abs(got.astype(np.float64) - want)
    error = float(difference.max() / np.abs(want).max()) if np.isfinite(got).all() else float("inf")
    return Check(op, n_tokens, error, limit)


def _input(n_tokens: int, width: int) -> np.ndarray:
    return np.random.default_rng(n_tokens + width).standard_normal((n_tokens, width)).astype(np.float32)


def _weights(gpu: Any, quant_type: QuantType, n_rows: int, n_cols: int, seed: int) -> tuple[Weight, Weight]:
    """(on the device, on the host)"""
    blocks = np.ascontiguousarray(random_rows(np.random.default_rng(seed), quant_type, n_rows, n_cols))
    return gpu.weight(blocks, quant_type, n_rows, n_cols), ReferenceBackend().weight(
        blocks, quant_type, n_rows, n_cols
    )


def _limit(n_tokens: int) -> float:
    return FLOAT32 if n_tokens <= 8 else TF32


def _linear(gpu: Any, quant_type: QuantType, n_tokens: int, n_rows: int, n_cols: int) -> Check:
    there, here = _weights(gpu, quant_type, n_rows, n_cols, 1)
    x = _input(n_tokens, n_cols)
    got = gpu.to_host(gpu.linear(gpu.activations(gpu.from_host(x)), there))
    want = ReferenceBackend().linear(Activations(x), here)
    return _check(f"linear {quant_type.name}", n_tokens, got, want, _limit(n_tokens))


def _experts(gpu: Any, quant_type: QuantType, n_tokens: int, hidden: int, width: int) -> Iterator[Check]:
    n_experts, k = 6, 3
    shapes = ((width, hidden), (width, hidden), (hidden, width))
    pairs = [
        [_weights(gpu, quant_type, *shape, 10 * e + i) for e in range(n_experts)] for i, shape in enumerate(shapes)
    ]
    types = np.full(n_experts, int(quant_type), np.uint8)

    def table(address: Callable[[tuple[Weight, Weight]], int]) -> ExpertTable:
        at = [np.array([address(pair) for pair in row], np.int64) for row in pairs]
        return ExpertTable(at[0], at[1], at[2], types, types, types, hidden, width)

    x = _input(n_tokens, hidden)
    rng = np.random.default_rng(n_tokens)
    ids = np.stack([rng.permutation(n_experts)[:k] for _ in range(n_tokens)]).astype(np.int32)
    weights = rng.random((n_tokens, k)).astype(np.float32)
    groups = group_by_expert(ids)
    which = np.arange(groups.expert_ids.size, dtype=np.int32)
    results = []
    for backend, slots, a in (
        (gpu, table(lambda pair: pair[0].data.data_ptr()), gpu.activations(gpu.from_host(x))),
        (ReferenceBackend(), table(lambda pair: pair[1].data.ctypes.data), Activations(x)),
    ):
        h, d = backend.pair_buffers(ids.size, width, hidden)
        backend.expert_gate_up(a, slots, groups, which, h)
        backend.expert_down(h, slots, groups, which, d)
        results.append(backend.to_host(backend.expert_combine(d, groups, weights)))
        if n_tokens == 1 and backend is gpu:
            together = gpu.to_host(gpu.expert_down_combine(h, slots, groups, weights))
    yield _check(f"experts {quant_type.name}", n_tokens, results[0], results[1], 2 * _limit(n_tokens))
    if n_tokens == 1:
        yield _check(f"experts {quant_type.name}, down and sum", 1, together, results[1], 2 * _limit(1))


def _rows(gpu: Any, n_tokens: int, hidden: int) -> Iterator[Check]:
    reference, x = ReferenceBackend(), _input(n_tokens, hidden)
    weight = 1 + 0.1 * _input(1, hidden)[0]
    got = gpu.to_host(gpu.norm(gpu.from_host(x), gpu.from_host(weight), 1e-5).x)
    yield _check("norm", n_tokens, got, reference.norm(x, weight, 1e-5).x, FLOAT32)
    got = gpu.to_host(gpu.layer_norm(gpu.from_host(x), gpu.from_host(weight), gpu.from_host(x[0].copy()), 1e-5).x)
    yield _check("layer_norm", n_tokens, got, reference.layer_norm(x, weight, x[0], 1e-5).x, FLOAT32)
    got = gpu.to_host(gpu.head_norm(gpu.from_host(x.copy()), gpu.from_host(weight[:64]), 1e-5))
    yield _check("head_norm", n_tokens, got, reference.head_norm(x.copy(), weight[:64], 1e-5), FLOAT32)
    there, here = _weights(gpu, QuantType.Q4_K, 100, 256, 3)
    ids = np.arange(n_tokens, dtype=np.int64) * 7 % 100
    yield _check("embed", n_tokens, gpu.to_host(gpu.embed(there, ids)), reference.embed(here, ids), FLOAT32)


def _hybrid(gpu: Any, n_tokens: int, key_heads: int, heads: int, width: int) -> Iterator[Check]:
    """What recurrent layers add: gates, the convolution and the delta rule, each with the state that it leaves."""
    reference, size = ReferenceBackend(), heads * width
    x, gate, weight = _input(n_tokens, size), _input(n_tokens + 1, size)[1:], 1 + 0.1 * _input(1, width)[0]
    got = gpu.to_host(gpu.sigmoid_gate(gpu.from_host(x.copy()), gpu.from_host(gate)))
    yield _check("sigmoid_gate", n_tokens, got, reference.sigmoid_gate(x.copy(), gate), FLOAT32)
    got = gpu.to_host(gpu.gated_norm(gpu.from_host(x.copy()), gpu.from_host(gate), gpu.from_host(weight), 1e-5))
    yield _check("gated_norm", n_tokens, got, reference.gated_norm(x.copy(), gate, weight, 1e-5), FLOAT32)
    channels = 2 * key_heads * width + size
    qkv, kernel, state = _input(n_tokens, channels), _input(4, channels), _input(3, channels)
    there = gpu.from_host(state.copy())
    got = gpu.to_host(gpu.causal_conv(gpu.from_host(qkv), gpu.from_host(kernel), there, True))
    yield _check("causal_conv", n_tokens, got, reference.causal_conv(qkv, kernel, state, True), FLOAT32)
    yield _check("causal_conv, state", n_tokens, gpu.to_host(there), state, FLOAT32)
    gates, decay, dt_bias = _input(n_tokens, 2 * heads), -np.abs(_input(1, heads)[0]), _input(2, heads)[1]
    sizes = (key_heads, heads, width, width)
    rule, device_rule = (DeltaRule(*sizes, *map(put, (decay, dt_bias)), True) for put in (np.array, gpu.from_host))
    memory = _input(heads * width, width).reshape(heads, width, width)
    there, beta, alpha = gpu.from_host(memory.copy()), gates[:, :heads].copy(), gates[:, heads:].copy()
    on_gpu = (gpu.from_host(rows) for rows in (qkv, beta, alpha))
    got = gpu.to_host(gpu.delta_rule(*on_gpu, device_rule, there))
    yield _check("delta_rule", n_tokens, got, reference.delta_rule(qkv, beta, alpha, rule, memory), RECURRENT)
    yield _check("delta_rule, state", n_tokens, gpu.to_host(there), memory, RECURRENT)


def _mamba(gpu: Any, n_tokens: int, groups: int, heads: int, state_size: int, width: int) -> Iterator[Check]:
    """What Mamba-2 layers add: a bias on the convolution, and the selective scan with the state that it leaves."""
    reference, channels = ReferenceBackend(), heads * width + 2 * groups * state_size
    rows, kernel, state = _input(n_tokens, channels), _input(4, channels), _input(3, channels)
    bias, there = _input(1, channels)[0], gpu.from_host(state.copy())
    got = gpu.to_host(gpu.causal_conv(gpu.from_host(rows), gpu.from_host(kernel), there, True, gpu.from_host(bias)))
    yield _check("causal_conv, bias", n_tokens, got, reference.causal_conv(rows, kernel, state, True, bias), FLOAT32)
    sizes, constants = (groups, heads, state_size, width), (-np.abs(_input(1, heads)[0]), *_input(2, heads))
    scan, device_scan = (SelectiveScan(*sizes, *map(put, constants)) for put in (np.array, gpu.from_host))
    memory = _input(heads * state_size, width).reshape(heads, state_size, width)
    steps, there = _input(n_tokens, heads), gpu.from_host(memory.copy())
    got = gpu.to_host(gpu.selective_scan(gpu.from_host(rows), gpu.from_host(steps), device_scan, there))
    yield _check("selective_scan", n_tokens, got, reference.selective_scan(rows, steps, scan, memory), RECURRENT)
    yield _check("selective_scan, state", n_tokens, gpu.to_host(there), memory, RECURRENT)


def _attention(gpu: Any, kind: str, limit: float, n_tokens: int) -> Iterator[Check]:
    """A prompt, then one token after it."""
    heads, kv_heads, width = 8, 2, 64
    rope = build_rope_table(RopeConfig(10000.0, width, False), n_tokens + 1)
    device_rope = RopeTable(gpu.from_host(rope.cos), gpu.from_host(rope.sin), rope.n_rot, rope.interleaved)
    reference = ReferenceBackend()
    caches = [b.kv_layer(kv_heads, n_tokens + 1, width, width, kind, kind) for b in (gpu, reference)]
    for start, n in ((0, n_tokens), (n_tokens, 1)):
        q, k, v = (_input(n + start, heads * width), _input(n + 1, kv_heads * width), _input(n + 2, kv_heads * width))
        q, k, v = q[-n:], k[-n:], v[-n:]
        out = []
        for backend, cache, table in ((gpu, caches[0], device_rope), (reference, caches[1], rope)):
            qd, kd, vd = (backend.from_host(np.array(rows)) for rows in (q, k, v))
            backend.rope_write(qd, kd, vd, table, start, cache)
            out.append(backend.to_host(backend.attention(qd, cache, start, heads, width**-0.5)))
        yield _check(f"rope, attention {kind}", n, out[0], out[1], max(limit, _limit(n)))


def _router(gpu: Any, spec: RouterSpec, biased: bool) -> Check:
    """Ids must be the same; the error is that of the weights."""
    logits = _input(33, spec.num_experts)
    bias = 0.1 * _input(1, spec.num_experts)[0] if biased else None
    ids, weights = gpu.route(gpu.from_host(logits), spec, None if bias is None else gpu.from_host(bias))
    want_ids, want = ReferenceBackend().route(logits, spec, bias)
    name = f"router {spec.gating}{' in groups' if spec.num_groups > 1 else ''}"
    if not np.array_equal(ids, want_ids):
        return Check(name, 33, float("inf"), FLOAT32)
    return _check(name, 33, weights, want, FLOAT32)
