"""The reference ops against values worked out on paper and against a second, differently built formula."""

from __future__ import annotations

import math

import numpy as np
import pytest
from gguf import quants

from kernels.backend import ExpertTable, KVLayer, RopeTable, Weight
from kernels.grouping import group_by_expert
from kernels.quant_types import QuantType, block_bytes, block_size
from kernels.reference.attention import attention_ref, kv_read_ref, kv_write_ref, new_kv_ref
from kernels.reference.backend import ReferenceBackend
from kernels.reference.dequant import dequantize_rows
from kernels.reference.linear import linear_ref, silu_ref
from kernels.reference.norm import head_norm_ref, norm_ref
from kernels.reference.rope import rope_ref
from kernels.reference.router import route_ref
from kernels.router_spec import RouterSpec
from tests.tolerances import FLOAT32_RELATIVE, PAPER_DECIMALS, REFERENCE_RELATIVE

RNG = np.random.default_rng(0)
BACKEND = ReferenceBackend()


def f32_weight(array: np.ndarray) -> Weight:
    return BACKEND.weight(
        np.ascontiguousarray(array, np.float32).view(np.uint8).reshape(-1), QuantType.F32, *array.shape
    )


def route_one(logits: list[float], spec: RouterSpec, bias: list[float] | None = None) -> tuple[list[int], list[float]]:
    """Through the backend, so that the float32 border is part of the test."""
    ids, weights = BACKEND.route(
        np.array([logits], np.float32), spec, None if bias is None else np.array(bias, np.float32)
    )
    assert (ids.dtype, weights.dtype) == (np.int32, np.float32)
    return ids[0].tolist(), weights[0].tolist()


# One fixture for every router rule: logits [2, 1, 0, -1], two experts.
LOGITS = [2.0, 1.0, 0.0, -1.0]


@pytest.mark.parametrize(
    ("gating", "norm", "scale", "bias", "expected_ids", "expected_weights"),
    [
        ("softmax", False, 1.0, None, [0, 1], [0.643914, 0.236883]),
        ("softmax", True, 1.0, None, [0, 1], [0.731059, 0.268941]),
        ("softmax_topk", False, 1.0, None, [0, 1], [0.731059, 0.268941]),
        ("sigmoid", False, 1.0, None, [0, 1], [0.880797, 0.731059]),
        ("sigmoid", True, 1.0, [0, 0, 0, 5], [3, 0], [0.233915, 0.766085]),
        ("sigmoid", True, 2.5, [0, 0, 0, 5], [3, 0], [0.584788, 1.915212]),
        ("sigmoid", False, 2.5, [0, 0, 0, 5], [3, 0], [2.5 * 0.268941, 2.5 * 0.880797]),
    ],
)
def test_router_rules(
    gating: str,
    norm: bool,
    scale: float,
    bias: list[float] | None,
    expected_ids: list[int],
    expected_weights: list[float],
) -> None:
    spec = RouterSpec(4, 2, gating, norm, scale)
    ids, weights = route_one(LOGITS, spec, bias)
    assert ids == expected_ids
    assert weights == pytest.approx(expected_weights, abs=PAPER_DECIMALS)


def test_router_of_one_expert_normalises_to_exactly_one() -> None:
    assert route_one(LOGITS, RouterSpec(4, 1, norm_topk_prob=True)) == ([0], [1.0])


def test_router_ties_go_to_the_smaller_id() -> None:
    assert route_one([1.0, 3.0, 3.0, 3.0, 1.0], RouterSpec(5, 2))[0] == [1, 2]


def inverse_sigmoid(scores: list[float]) -> list[float]:
    return [math.log(s / (1.0 - s)) for s in scores]


@pytest.mark.parametrize(
    ("num_groups", "bias", "expected"),
    [
        (2, None, [0, 1]),  # a group by its best score: .9 beats .6
        (2, [0.0, 0.0, 0.0, 0.0], [2, 3]),  # by the sum of its two best: 1.2 beats 1.0
        (1, None, [0, 2]),
    ],
)
def test_router_groups(num_groups: int, bias: list[float] | None, expected: list[int]) -> None:
    spec = RouterSpec(4, 2, "sigmoid", num_groups=num_groups, num_groups_used=1)
    assert route_one(inverse_sigmoid([0.9, 0.1, 0.6, 0.6]), spec, bias)[0] == expected


def test_router_excludes_groups_by_minus_infinity_not_zero() -> None:
    """Biased scores [-.3, -.2 | -.5, -.4] are all below zero: an excluded group at 0 would win."""
    scores = np.array([0.5, 0.5, 0.5, 0.5])
    bias = (np.array([-0.3, -0.2, -0.5, -0.4]) - scores).tolist()
    spec = RouterSpec(4, 2, "sigmoid", num_groups=2, num_groups_used=1)
    assert route_one(inverse_sigmoid(scores.tolist()), spec, bias)[0] == [1, 0]


def test_routed_sum_of_constant_experts_is_the_scale() -> None:
    ids, weights = route_ref(np.array([LOGITS]), RouterSpec(4, 2, "sigmoid", True, 2.5))
    out = BACKEND.expert_combine(np.ones((2, 3), np.float32), group_by_expert(ids), weights.astype(np.float32))
    assert out[0] == pytest.approx([2.5] * 3, abs=PAPER_DECIMALS)


def test_router_refuses_an_unknown_gating() -> None:
    with pytest.raises(ValueError, match="tanh"):
        route_one(LOGITS, RouterSpec(4, 2, "tanh"))


def test_norm_on_paper() -> None:
    assert norm_ref(np.array([[3.0, 4.0]]), np.array([1.0, 2.0]), 0.0)[0] == pytest.approx(
        [3 / math.sqrt(12.5), 8 / math.sqrt(12.5)], abs=PAPER_DECIMALS
    )


def test_head_norm_per_head_and_over_the_row() -> None:
    x, weight = RNG.standard_normal((3, 12)), RNG.standard_normal(4)
    per_head = np.concatenate([norm_ref(x[:, i : i + 4], weight, 1e-5) for i in (0, 4, 8)], axis=1)
    np.testing.assert_allclose(head_norm_ref(x, weight, 1e-5), per_head, rtol=REFERENCE_RELATIVE)
    wide = RNG.standard_normal(12)
    np.testing.assert_allclose(head_norm_ref(x, wide, 1e-5), norm_ref(x, wide, 1e-5), rtol=REFERENCE_RELATIVE)


def test_backend_head_norm_works_in_place_on_a_slice() -> None:
    row = RNG.standard_normal((1, 12)).astype(np.float32)
    before, weight = row.copy(), np.ones(4, np.float32)
    BACKEND.head_norm(row[:, :8], weight, 0.0)
    np.testing.assert_array_equal(row[:, 8:], before[:, 8:])
    assert not np.array_equal(row[:, :8], before[:, :8])


def test_silu_does_not_overflow() -> None:
    assert silu_ref(np.array([-1000.0, 0.0, 1000.0])).tolist() == [0.0, 0.0, 1000.0]
    assert silu_ref(np.array([1.0, 10.0]))[0] == pytest.approx(0.731059, abs=PAPER_DECIMALS)


@pytest.mark.parametrize("interleaved", [False, True])
def test_rope_is_a_complex_turn(interleaved: bool) -> None:
    """Each pair as a complex number, times e^(i angle); components past n_rot pass."""
    n_tokens, head_dim, n_rot, start = 5, 10, 8, 3
    angles = RNG.uniform(0, 6, (16, n_rot // 2))
    table = RopeTable(np.cos(angles), np.sin(angles), n_rot, interleaved)
    x = RNG.standard_normal((n_tokens, 2 * head_dim))
    out = rope_ref(x, table, start, head_dim).reshape(n_tokens, 2, head_dim)
    heads = x.reshape(n_tokens, 2, head_dim)
    for pair in range(n_rot // 2):
        a, b = (2 * pair, 2 * pair + 1) if interleaved else (pair, pair + n_rot // 2)
        turn = np.exp(1j * angles[start : start + n_tokens, pair])[:, None]
        turned = (heads[..., a] + 1j * heads[..., b]) * turn
        np.testing.assert_allclose(out[..., a], turned.real, rtol=REFERENCE_RELATIVE)
        np.testing.assert_allclose(out[..., b], turned.imag, rtol=REFERENCE_RELATIVE)
    np.testing.assert_array_equal(out[..., n_rot:], heads[..., n_rot:])


def test_rope_refuses_positions_past_the_table() -> None:
    table = RopeTable(np.ones((4, 2)), np.zeros((4, 2)), 4, False)
    with pytest.raises(ValueError, match="positions up to 5"):
        rope_ref(np.zeros((2, 4)), table, 3, 4)


def slow_attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, start: int, scale: float, window: int) -> np.ndarray:
    """One query head and one position at a time; q [T, H, d], k and v [G, L, d]."""
    n_tokens, num_heads, _ = q.shape
    out = np.zeros((n_tokens, num_heads, v.shape[2]))
    for t in range(n_tokens):
        first = max(0, start + t + 1 - window) if window else 0
        for head in range(num_heads):
            group = head // (num_heads // k.shape[0])
            scores = [scale * float(q[t, head] @ k[group, p]) for p in range(first, start + t + 1)]
            total = sum(math.exp(s) for s in scores)
            for score, p in zip(scores, range(first, start + t + 1), strict=True):
                out[t, head] += math.exp(score) / total * v[group, p]
    return out.reshape(n_tokens, -1)


@pytest.mark.parametrize(("num_heads", "num_kv_heads"), [(4, 4), (4, 1), (6, 2)])
@pytest.mark.parametrize("window", [0, 1, 3])
def test_attention_against_one_position_at_a_time(num_heads: int, num_kv_heads: int, window: int) -> None:
    n_tokens, start, width = 4, 5, 8
    k, v = (new_kv_ref(num_kv_heads, 12, width, "f32") for _ in range(2))
    cache = KVLayer(k, v, "f32", "f32")
    cache.k[:], cache.v[:] = RNG.standard_normal(cache.k.shape), RNG.standard_normal(cache.v.shape)
    q = RNG.standard_normal((n_tokens, num_heads * width))
    out = attention_ref(q, cache, start, num_heads, 0.3, window)
    k, v = cache.k.astype(np.float64), cache.v.astype(np.float64)
    slow = slow_attention(q.reshape(n_tokens, num_heads, width), k, v, start, 0.3, window)
    np.testing.assert_allclose(out, slow, rtol=REFERENCE_RELATIVE, atol=REFERENCE_RELATIVE)


@pytest.mark.parametrize("dtype", ["f32", "f16", "q8_0"])
def test_kv_cache_gives_back_what_its_type_can_hold(dtype: str) -> None:
    width, rows = 32, RNG.standard_normal((3, 64)).astype(np.float32)
    stored = new_kv_ref(2, 8, width, dtype)
    kv_write_ref(stored, rows, 4)
    back = kv_read_ref(stored, 7)
    assert back.shape == (2, 7, width)
    assert not back[:, :4].any()
    head = rows.reshape(3, 2, width).swapaxes(0, 1)
    held = {
        "f32": head,
        "f16": head.astype(np.float16),
        "q8_0": quants.dequantize(quants.quantize(head, QuantType.Q8_0), QuantType.Q8_0),
    }[dtype]
    np.testing.assert_array_equal(back[:, 4:], held)


def test_kv_cache_refuses_more_than_it_holds() -> None:
    with pytest.raises(ValueError, match="KV cache of 8"):
        kv_write_ref(new_kv_ref(1, 8, 4, "f32"), np.zeros((2, 4), np.float32), 7)
    with pytest.raises(ValueError, match="f8"):
        new_kv_ref(1, 8, 4, "f8")


def test_linear_joins_weights_and_adds_the_bias() -> None:
    x, first, second = (RNG.standard_normal(shape).astype(np.float32) for shape in ((3, 8), (5, 8), (2, 8)))
    bias = RNG.standard_normal(7)
    out = linear_ref(x, f32_weight(first), f32_weight(second), bias=bias)
    expected = np.einsum("td,nd->tn", x.astype(np.float64), np.vstack([first, second]).astype(np.float64)) + bias
    np.testing.assert_allclose(out, expected, rtol=REFERENCE_RELATIVE)


def test_embed_takes_rows_and_refuses_ids_outside() -> None:
    table = RNG.standard_normal((5, 4)).astype(np.float32)
    np.testing.assert_array_equal(BACKEND.embed(f32_weight(table), np.array([4, 0, 4])), table[[4, 0, 4]])
    with pytest.raises(ValueError, match=r"0\.\.4"):
        BACKEND.embed(f32_weight(table), np.array([5]))


DIRECT = [QuantType.F16, QuantType.BF16, QuantType.Q8_0, QuantType.Q4_0, QuantType.Q4_K, QuantType.Q6_K]


@pytest.mark.parametrize("quant_type", DIRECT, ids=lambda t: t.name)
def test_dequantize_keeps_leading_axes(quant_type: QuantType) -> None:
    n_blocks, n_cols = 2, 2 * block_size(quant_type)
    data = RNG.integers(0, 60, (3, 4, n_blocks * block_bytes(quant_type)), dtype=np.uint8)
    out = dequantize_rows(data, quant_type, n_cols)
    assert out.shape == (3, 4, n_cols)
    np.testing.assert_array_equal(out[1, 2], quants.dequantize(data[1, 2], quant_type))


def test_dequantize_a_hand_made_q8_0_block() -> None:
    """Field table of the block: float16 scale, 32 signed bytes."""
    block = np.concatenate(
        [np.array([0.5], np.float16).view(np.uint8), np.arange(-16, 16, dtype=np.int8).view(np.uint8)]
    )
    np.testing.assert_array_equal(dequantize_rows(block, QuantType.Q8_0, 32), np.arange(-16, 16) * 0.5)


def test_dequantize_a_hand_made_mxfp4_block() -> None:
    """Scale byte 127 is 1; the low nibbles are weights 0..15, the high ones 16..31."""
    block = np.zeros(17, np.uint8)
    block[:2] = 127, 0x21
    out = dequantize_rows(block, QuantType.MXFP4, 32)
    assert (out[0], out[16]) == (0.5, 1.0)
    assert np.count_nonzero(out) == 2


def test_dequantize_refuses_a_row_of_the_wrong_length() -> None:
    with pytest.raises(ValueError, match="Q8_0 rows of 64 take 68"):
        dequantize_rows(np.zeros((2, 34), np.uint8), QuantType.Q8_0, 64)
    with pytest.raises(ValueError, match="got 33 uint8"):
        BACKEND.weight(np.zeros(33, np.uint8), QuantType.Q8_0, 1, 32)


def expert_layer(num_experts: int, width: int, hidden: int) -> tuple[ExpertTable, list[np.ndarray]]:
    """A table over F32 experts; the list keeps gate [E, F, D], up and down [E, D, F] alive."""
    shapes = ((width, hidden), (width, hidden), (hidden, width))
    arrays = [RNG.standard_normal((num_experts, *shape)).astype(np.float32) for shape in shapes]
    addresses = [np.array([matrix.ctypes.data for matrix in array], np.int64) for array in arrays]
    types = [np.zeros(num_experts, np.uint8) for _ in arrays]
    return ExpertTable(*addresses, *types, hidden, width), arrays


def run_experts(
    table: ExpertTable, x: np.ndarray, ids: np.ndarray, weights: np.ndarray, order: list[list[int]]
) -> np.ndarray:
    """The whole expert half, groups computed in the batches of `order`, from NaN-filled buffers."""
    groups = group_by_expert(ids)
    h, d = BACKEND.pair_buffers(ids.size, table.intermediate_size, table.hidden_size)
    h.fill(np.nan)
    d.fill(np.nan)
    for batch in order:
        which = np.array(batch, np.int32)
        BACKEND.expert_gate_up(BACKEND.activations(x), table, groups, which, h)
        BACKEND.expert_down(h, table, groups, which, d)
    return BACKEND.expert_combine(d, groups, weights)


def test_experts_against_one_token_at_a_time_in_any_order() -> None:
    table, (gate, up, down) = expert_layer(5, 6, 8)
    x = RNG.standard_normal((4, 8)).astype(np.float32)
    ids = np.array([[3, 0], [0, 4], [3, 4], [4, 3]], np.int32)
    weights = RNG.uniform(0.1, 1, ids.shape).astype(np.float32)
    expected = np.zeros((4, 8))
    for t in range(4):
        for k in range(2):
            e, row = ids[t, k], x[t].astype(np.float64)
            g = gate[e] @ row
            expected[t] += weights[t, k] * (down[e] @ (g / (1 + np.exp(-g)) * (up[e] @ row)))
    at_once = run_experts(table, x, ids, weights, [[0, 1, 2]])
    np.testing.assert_allclose(at_once, expected, rtol=FLOAT32_RELATIVE, atol=FLOAT32_RELATIVE)
    np.testing.assert_array_equal(at_once, run_experts(table, x, ids, weights, [[2], [0, 1]]))


def test_experts_refuse_one_that_is_not_resident() -> None:
    table, _alive = expert_layer(3, 6, 8)
    table.up[1] = 0
    with pytest.raises(ValueError, match="not resident"):
        run_experts(table, np.zeros((1, 8), np.float32), np.array([[1]], np.int32), np.ones((1, 1), np.float32), [[0]])
