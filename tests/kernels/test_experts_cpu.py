"""CPU expert layers: slot tables of mixed types, subsets, threads, and the fixed order of the sum."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import tolerances
from gguf import GGMLQuantizationType, quants
from quant_blocks import as_read, random_rows

from kernels.backend import ExpertBiases, ExpertGroups, ExpertTable, GatedUnit
from kernels.cpu import parallel
from kernels.cpu.backend import CpuBackend
from kernels.cpu.dots import DIRECT_TYPES
from kernels.cpu.gated_units import join_halves
from kernels.grouping import group_by_expert
from kernels.quant_types import QuantType
from kernels.reference.dequant import dequantize_rows

HIDDEN, WIDTH, EXPERTS = 512, 256, 7
ONE_TYPE = {"gate": (QuantType.Q4_K,), "up": (QuantType.Q4_K,), "down": (QuantType.Q4_K,)}
MIXED = {
    "gate": (QuantType.Q4_K, QuantType.Q8_0, QuantType.F16),
    "up": (QuantType.Q6_K, QuantType.Q4_0, QuantType.Q4_K),
    "down": (QuantType.MXFP4, QuantType.Q6_K, QuantType.F32),
}
WITH_SLOW = {
    "gate": (QuantType.Q4_K, QuantType.IQ2_XXS),
    "up": (QuantType.Q4_K, QuantType.IQ2_XXS),
    "down": (QuantType.Q8_0, QuantType.TQ2_0, QuantType.Q4_K),
}
MIXES = {"one type": ONE_TYPE, "mixed": MIXED, "with slow types": WITH_SLOW}


@pytest.fixture(scope="module")
def backend() -> CpuBackend:
    return CpuBackend()


@pytest.fixture
def threads() -> Iterator[None]:
    before = parallel.num_threads()
    yield
    parallel.set_threads(before)


class Layer:
    """EXPERTS experts of a mix of types: the slot table, and the same matrices as float64."""

    def __init__(self, mix: dict[str, tuple[QuantType, ...]]) -> None:
        rng = np.random.default_rng(4)
        self.blocks: list[np.ndarray] = []
        self.matrices: dict[str, list[np.ndarray]] = {}
        places, ids = {}, {}
        for part, kinds in mix.items():
            n_rows, n_cols = (HIDDEN, WIDTH) if part == "down" else (WIDTH, HIDDEN)
            types = [kinds[e % len(kinds)] for e in range(EXPERTS)]
            blocks = [random_rows(rng, t, n_rows, n_cols) for t in types]
            pairs = zip(blocks, types, strict=True)
            self.blocks += blocks
            self.matrices[part] = [dequantize_rows(b, t, n_cols).astype(np.float64) for b, t in pairs]
            places[part] = np.array([b.ctypes.data for b in blocks], np.int64)
            ids[part] = np.array([int(t) for t in types], np.uint8)
        self.table = ExpertTable(
            *(places[p] for p in ("gate", "up", "down")), *(ids[p] for p in ("gate", "up", "down")), HIDDEN, WIDTH
        )

    def expected_h(self, x: np.ndarray, groups: ExpertGroups, pair: int) -> np.ndarray:
        expert = expert_of(groups, pair)
        row = x[groups.token_ids[pair]]
        gate, up = self.product("gate", expert, row), self.product("up", expert, row)
        return np.asarray(gate / (1 + np.exp(-gate)) * up)

    def product(self, part: str, expert: int, row: np.ndarray) -> np.ndarray:
        """One matrix times a float32 row as its kernel reads it. An expert whose gate or up has no direct kernel is
        computed from float32 rows altogether."""
        types = {p: QuantType(int(getattr(self.table, f"{p}_types")[expert])) for p in ("gate", "up", "down")}
        together = ("gate", "up") if part != "down" else ("down",)
        slow = any(types[p] not in DIRECT_TYPES for p in together)
        return np.asarray(self.matrices[part][expert] @ (row.astype(np.float64) if slow else as_read(row, types[part])))


def expert_of(groups: ExpertGroups, pair: int) -> int:
    return int(groups.expert_ids[np.searchsorted(groups.offsets, pair, side="right") - 1])


def routed(n_tokens: int, k: int = 3, one_expert: bool = False) -> ExpertGroups:
    rng = np.random.default_rng(n_tokens)
    if one_expert:
        return group_by_expert(np.full((n_tokens, 1), 2, np.int32))
    return group_by_expert(np.stack([rng.permutation(EXPERTS)[:k] for _ in range(n_tokens)]).astype(np.int32))


def run(
    backend: CpuBackend, table: ExpertTable, x: np.ndarray, groups: ExpertGroups, parts: list[np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """(h, d) after gate_up and down of the groups listed in each of `parts`, in that order; NaN where nothing was
    written.
    """
    n_pairs = groups.token_ids.shape[0]
    h, d = np.full((n_pairs, WIDTH), np.nan, np.float32), np.full((n_pairs, HIDDEN), np.nan, np.float32)
    a = backend.activations(x)
    for which in parts:
        backend.expert_gate_up(a, table, groups, which, h)
        backend.expert_down(h, table, groups, which, d)
    return h, d


def everything(groups: ExpertGroups) -> np.ndarray:
    return np.arange(groups.expert_ids.shape[0], dtype=np.int32)


def tokens(n: int) -> np.ndarray:
    return np.random.default_rng(n + 100).standard_normal((n, HIDDEN)).astype(np.float32)


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("n_tokens", [1, 3, 24])
def test_pairs_are_those_of_the_dequantised_experts(backend: CpuBackend, mix: str, n_tokens: int) -> None:
    layer, x, groups = Layer(MIXES[mix]), tokens(n_tokens), routed(n_tokens)
    h, d = run(backend, layer.table, x, groups, [everything(groups)])
    for pair in range(h.shape[0]):
        expected = layer.expected_h(x, groups, pair)
        assert np.abs(h[pair] - expected).max() < tolerances.FLOAT32_RELATIVE * np.abs(expected).max()
        down = layer.product("down", expert_of(groups, pair), h[pair])
        assert np.abs(d[pair] - down).max() < tolerances.FLOAT32_RELATIVE * np.abs(down).max()


@pytest.mark.parametrize("n_tokens", [1, 24])
def test_float_experts_are_exact_to_float32(backend: CpuBackend, n_tokens: int) -> None:
    layer = Layer(dict.fromkeys(("gate", "up", "down"), (QuantType.F32,)))
    x, groups = tokens(n_tokens), routed(n_tokens)
    h, d = run(backend, layer.table, x, groups, [everything(groups)])
    for pair in range(h.shape[0]):
        expected = layer.expected_h(x, groups, pair)
        assert np.abs(h[pair] - expected).max() < tolerances.FLOAT32_RELATIVE * np.abs(expected).max()
        down = layer.matrices["down"][expert_of(groups, pair)] @ expected
        assert np.abs(d[pair] - down).max() < tolerances.FLOAT32_RELATIVE * np.abs(down).max()


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("n_tokens", [1, 3, 24])
def test_one_group_at_a_time_in_any_order_gives_the_same_bits(backend: CpuBackend, mix: str, n_tokens: int) -> None:
    layer, x, groups = Layer(MIXES[mix]), tokens(n_tokens), routed(n_tokens)
    whole = run(backend, layer.table, x, groups, [everything(groups)])
    order = np.random.default_rng(0).permutation(everything(groups))
    one_by_one = run(backend, layer.table, x, groups, [order[i : i + 1] for i in range(order.size)])
    for a, b in zip(whole, one_by_one, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("n_tokens", [1, 3, 24])
def test_every_thread_count_gives_the_same_bits(backend: CpuBackend, n_tokens: int) -> None:
    if parallel.max_threads() < 2:
        pytest.skip("needs two cores")
    layer, x, groups, results = Layer(MIXED), tokens(n_tokens), routed(n_tokens), []
    for n in (1, 2):
        parallel.set_threads(n)
        results.append(run(backend, layer.table, x, groups, [everything(groups)]))
    for a, b in zip(*results, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.usefixtures("threads", "nan_poison")
@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("n_tokens", [1, 2])
@pytest.mark.parametrize(("k", "biased"), [(1, False), (3, False), (3, True), (EXPERTS, False)])
def test_a_whole_layer_at_once_has_the_bits_of_the_steps(
    backend: CpuBackend, mix: str, n_tokens: int, k: int, biased: bool
) -> None:
    rng = np.random.default_rng(k)
    layer, x = Layer(MIXES[mix]), tokens(n_tokens)
    if biased:
        sizes = (WIDTH, WIDTH, HIDDEN)
        layer.table.biases = ExpertBiases(*(rng.standard_normal((EXPERTS, n)).astype(np.float32) for n in sizes))
        layer.table.unit = GatedUnit("clamped", 1.702, 7.0)
    topk_ids = np.stack([rng.permutation(EXPERTS)[:k] for _ in range(n_tokens)]).astype(np.int32)
    topk_weights = rng.random((n_tokens, k), np.float32)
    groups = group_by_expert(topk_ids)
    _, d = run(backend, layer.table, x, groups, [everything(groups)])
    expected = backend.expert_combine(d, groups, topk_weights)
    for n in range(1, parallel.max_threads() + 1):
        parallel.set_threads(n)
        found = backend.experts(backend.activations(x), layer.table, topk_ids, topk_weights)
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("n_tokens", [2, 24])
def test_only_listed_groups_are_written_and_only_their_addresses_read(backend: CpuBackend, n_tokens: int) -> None:
    layer, x, groups = Layer(ONE_TYPE), tokens(n_tokens), routed(n_tokens)
    listed = everything(groups)[1:3]
    for addresses in (layer.table.gate, layer.table.up, layer.table.down):
        absent = np.ones(EXPERTS, bool)
        absent[groups.expert_ids[listed]] = False
        addresses[absent] = 0
    h, d = run(backend, layer.table, x, groups, [listed])
    written = np.zeros(h.shape[0], bool)
    for g in listed:
        written[groups.offsets[g] : groups.offsets[g + 1]] = True
    for result in (h, d):
        np.testing.assert_array_equal(np.isnan(result).any(1), ~written)
        np.testing.assert_array_equal(np.isnan(result).all(1), ~written)
    nothing_h, _ = run(backend, layer.table, x, groups, [listed[:0]])
    assert np.isnan(nothing_h).all()


def test_all_tokens_to_one_expert(backend: CpuBackend) -> None:
    layer, x = Layer(ONE_TYPE), tokens(9)
    groups = routed(9, one_expert=True)
    h, _ = run(backend, layer.table, x, groups, [everything(groups)])
    for pair in range(9):
        expected = layer.expected_h(x, groups, pair)
        assert np.abs(h[pair] - expected).max() < tolerances.FLOAT32_RELATIVE * np.abs(expected).max()


def test_silu_of_large_numbers_neither_overflows_nor_hides_nan() -> None:
    """gate = x * w with w = 1 on the diagonal: -1000 gives -0, 1000 gives itself, NaN stays."""
    gate = np.zeros((1, 32), np.float32)
    gate[0, :7] = [-1000, -100, -1, 0, 1, 1000, np.nan]
    values = join_halves(np.concatenate([gate, np.ones((1, 32), np.float32)], 1), 32)[0]
    expected = [0, 0, -0.26894142, 0, 0.73105858, 1000, np.nan]
    np.testing.assert_allclose(values[:7], expected, rtol=tolerances.FLOAT32_RELATIVE, atol=1e-30)


@pytest.mark.usefixtures("nan_poison")
def test_the_sum_is_taken_in_rank_order(backend: CpuBackend) -> None:
    """1e8 + 1 - 1e8 is 0 in float32 in rank order, and 1 in another."""
    topk_ids = np.array([[5, 1, 3], [3, 5, 1]], np.int32)
    groups = group_by_expert(topk_ids)
    values = {5: 1e8, 1: 1.0, 3: -1e8}
    d = np.empty((6, 3), np.float32)
    for pair in range(6):
        d[pair] = values[expert_of(groups, pair)]
    out = backend.expert_combine(d, groups, np.ones((2, 3), np.float32))
    np.testing.assert_array_equal(out, [[0.0] * 3, [1.0] * 3])
    weighted = backend.expert_combine(d, groups, np.array([[0, 0.5, 0], [0, 0, 0.25]], np.float32))
    np.testing.assert_array_equal(weighted, [[0.5] * 3, [0.25] * 3])


def test_workspace_grows_and_is_handed_out_again(backend: CpuBackend) -> None:
    h, d = backend.pair_buffers(3, 48, 96)
    assert (h.shape, d.shape) == ((3, 48), (3, 96))
    again, _ = backend.pair_buffers(2, 48, 96)
    assert again.base is h.base
    assert backend.pair_buffers(5, 48, 96)[1].shape == (5, 96)


def test_shapes_that_do_not_fit_are_named(backend: CpuBackend) -> None:
    layer, groups = Layer(ONE_TYPE), routed(1)
    h, d = np.zeros((3, WIDTH), np.float32), np.zeros((3, HIDDEN), np.float32)
    with pytest.raises(ValueError, match="experts of 512 x 256"):
        backend.expert_gate_up(backend.activations(tokens(1)), layer.table, groups, everything(groups), d)
    with pytest.raises(ValueError, match="experts of 512 x 256"):
        backend.expert_down(h, layer.table, groups, everything(groups), h)


@pytest.mark.parametrize("quant_type", [QuantType.F32, QuantType.F16, QuantType.Q4_0, QuantType.Q5_0])
@pytest.mark.parametrize("n_tokens", [1, 2, 40])
def test_products_and_sums_beyond_half_floats_survive(
    backend: CpuBackend, quant_type: QuantType, n_tokens: int
) -> None:
    """gate * up = 300 * 300 = 9e4 and weights of 1 in the down-projection: 9e4 an expert, 1.8e5 of two."""
    layer = Layer(dict.fromkeys(ONE_TYPE, (quant_type,)))
    one = np.zeros((1, WIDTH), np.float32)
    one[0, 0] = 1.0
    for part, (n_rows, n_cols) in {"gate": (WIDTH, HIDDEN), "up": (WIDTH, HIDDEN), "down": (HIDDEN, WIDTH)}.items():
        matrix = np.zeros((n_rows, n_cols), np.float32)
        matrix[:, :WIDTH] = one
        blocks = np.ascontiguousarray(quants.quantize(matrix, GGMLQuantizationType(int(quant_type)))).view(np.uint8)
        layer.blocks.append(blocks)
        getattr(layer.table, part)[:] = blocks.ctypes.data
    x = np.zeros((n_tokens, HIDDEN), np.float32)
    x[:, 0] = 300.0
    topk_ids = np.tile(np.array([4, 1], np.int32), (n_tokens, 1))
    groups = group_by_expert(topk_ids)
    h, d = run(backend, layer.table, x, groups, [everything(groups)])
    np.testing.assert_allclose(h, 9e4, rtol=tolerances.FLOAT32_RELATIVE)
    np.testing.assert_allclose(d, 9e4, rtol=tolerances.FLOAT32_RELATIVE)
    total = backend.expert_combine(d, groups, np.ones((n_tokens, 2), np.float32))
    np.testing.assert_allclose(total, 1.8e5, rtol=tolerances.FLOAT32_RELATIVE)
