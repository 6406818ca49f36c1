"""GPU expert layers: slot tables of mixed types, subsets, biases and units, and the fixed order of the sum."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from quant_blocks import random_rows

from kernels.backend import SILU, Activations, ExpertBiases, ExpertGroups, ExpertTable, GatedUnit
from kernels.gpu.backend import GpuBackend
from kernels.gpu.emulated_graph import record
from kernels.gpu.experts_prefill import tiles_of
from kernels.grouping import group_by_expert
from kernels.quant_types import QuantType
from kernels.reference.experts import expert_combine_ref, expert_down_ref, expert_gate_up_ref
from tests.tolerances import FLOAT32_RELATIVE, GPU_RELATIVE

HIDDEN, WIDTH, EXPERTS = 256, 256, 7
Q = QuantType
MIXES = {
    "one type": ((Q.Q4_K,), (Q.Q4_K,), (Q.Q4_K,)),
    "mixed": ((Q.Q4_K, Q.Q8_0), (Q.Q6_K, Q.Q8_0), (Q.MXFP4, Q.Q5_K, Q.F16)),
}


def layer(mix: str, unit: GatedUnit = SILU, biased: bool = False) -> tuple[ExpertTable, ExpertTable, list[np.ndarray]]:
    """(table for the GPU, the same for the reference, memory that both point to)."""
    rng, kept, places, ids = np.random.default_rng(4), [], [], []
    for kinds, (n_rows, n_cols) in zip(MIXES[mix], ((WIDTH, HIDDEN), (WIDTH, HIDDEN), (HIDDEN, WIDTH)), strict=True):
        types = [kinds[e % len(kinds)] for e in range(EXPERTS)]
        blocks = [np.ascontiguousarray(random_rows(rng, t, n_rows, n_cols)) for t in types]
        kept += blocks
        places.append(np.array([b.ctypes.data for b in blocks], np.int64))
        ids.append(np.array([int(t) for t in types], np.uint8))
    table = ExpertTable(*places, *ids, HIDDEN, WIDTH, unit)
    if not biased:
        return table, table, kept
    biases = [rng.standard_normal((EXPERTS, n)).astype(np.float32) for n in (WIDTH, WIDTH, HIDDEN)]
    on_gpu = dataclasses.replace(table, biases=ExpertBiases(*map(torch.from_numpy, biases)))
    return on_gpu, dataclasses.replace(table, biases=ExpertBiases(*biases)), kept


def routed(n_tokens: int, k: int = 3) -> ExpertGroups:
    rng = np.random.default_rng(n_tokens)
    return group_by_expert(np.stack([rng.permutation(EXPERTS)[:k] for _ in range(n_tokens)]).astype(np.int32))


def everything(groups: ExpertGroups) -> np.ndarray:
    return np.arange(groups.expert_ids.shape[0], dtype=np.int32)


def tokens(n: int) -> np.ndarray:
    return np.random.default_rng(n + 100).standard_normal((n, HIDDEN)).astype(np.float32)


def run(
    gpu: GpuBackend, table: ExpertTable, x: np.ndarray, groups: ExpertGroups, parts: list[np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """(h, d) after gate_up and down of the groups listed in each of `parts`; NaN where nothing was written."""
    n_pairs = groups.token_ids.shape[0]
    h, d = torch.full((n_pairs, WIDTH), torch.nan), torch.full((n_pairs, HIDDEN), torch.nan)
    a = Activations(torch.from_numpy(x))
    for which in parts:
        gpu.expert_gate_up(a, table, groups, which, h)
        gpu.expert_down(h, table, groups, which, d)
    return h.numpy(), d.numpy()


def assert_reference(
    found: tuple[np.ndarray, np.ndarray],
    table: ExpertTable,
    x: np.ndarray,
    groups: ExpertGroups,
    relative: float = GPU_RELATIVE,
) -> None:
    h, d = (np.empty(part.shape, np.float32) for part in found)
    expert_gate_up_ref(x, table, groups, everything(groups), h)
    expert_down_ref(found[0], table, groups, everything(groups), d)
    for got, expected in zip(found, (h, d), strict=True):
        assert np.abs(got - expected).max() < relative * np.abs(expected).max()


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("n_tokens", [1, 3, 24])
def test_pairs_are_those_of_the_reference(gpu: GpuBackend, mix: str, n_tokens: int) -> None:
    table, _, _kept = layer(mix)
    x, groups = tokens(n_tokens), routed(n_tokens)
    assert_reference(run(gpu, table, x, groups, [everything(groups)]), table, x, groups)


@pytest.mark.parametrize("unit", [GatedUnit("clamped", 1.702, 0.5), GatedUnit("gelu")], ids=lambda u: u.kind)
@pytest.mark.parametrize("n_tokens", [1, 12])
def test_biases_and_other_units(gpu: GpuBackend, unit: GatedUnit, n_tokens: int) -> None:
    """A bound of 0.5 cuts numbers of 4 off, whose rounding stays."""
    table, same, _kept = layer("one type", unit, biased=True)
    x, groups = tokens(n_tokens), routed(n_tokens)
    assert_reference(run(gpu, table, x, groups, [everything(groups)]), same, x, groups, FLOAT32_RELATIVE)


@pytest.mark.parametrize(("n_tokens", "mix"), [(1, "mixed"), (3, "mixed"), (24, "one type")])
def test_one_group_at_a_time_in_any_order_gives_the_same_bits(gpu: GpuBackend, n_tokens: int, mix: str) -> None:
    table, _, _kept = layer(mix)
    x, groups = tokens(n_tokens), routed(n_tokens)
    whole = run(gpu, table, x, groups, [everything(groups)])
    order = np.random.default_rng(0).permutation(everything(groups))
    one_by_one = run(gpu, table, x, groups, [order[i : i + 1] for i in range(order.size)])
    for a, b in zip(whole, one_by_one, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("mix", ["one type", "mixed"])
def test_experts_that_were_recorded_once_follow_every_choice(gpu: GpuBackend, mix: str) -> None:
    """Ids and weights lie on the device, where each replay finds others."""
    table, _, _kept = layer(mix)
    rows, ids, weights = torch.zeros((1, HIDDEN)), torch.zeros((1, 3), dtype=torch.int32), torch.zeros((1, 3))
    gpu.routed_experts(Activations(rows), table, ids, weights)
    left: list[torch.Tensor] = []
    steps = record(lambda: left.append(gpu.recording(0).routed_experts(Activations(rows), table, ids, weights)))
    rng = np.random.default_rng(8)
    for turn in range(3):
        chosen, shares = rng.permutation(EXPERTS)[:3].astype(np.int32)[None], rng.random((1, 3)).astype(np.float32)
        x = tokens(turn + 1)[:1]
        for there, here in ((rows, x), (ids, chosen), (weights, shares)):
            there.copy_(torch.from_numpy(here))
        for step in steps:
            step()
        wanted = gpu.experts(Activations(torch.from_numpy(x)), table, chosen, shares)
        np.testing.assert_array_equal(left[0].numpy(), wanted.numpy())


@pytest.mark.parametrize("n_tokens", [2, 24])
def test_only_listed_groups_are_written_and_an_absent_expert_is_seen(gpu: GpuBackend, n_tokens: int) -> None:
    table, _, _kept = layer("one type")
    groups = routed(n_tokens)
    listed = everything(groups)[1:3]
    table.gate[groups.expert_ids[1]] = 0
    table.down[groups.expert_ids[2]] = 0
    h, d = run(gpu, table, tokens(n_tokens), groups, [listed])
    for result, absent in ((h, (1,)), (d, (1, 2))):
        expected = np.ones(h.shape[0], bool)
        for g in listed:
            if g not in absent:
                expected[groups.offsets[g] : groups.offsets[g + 1]] = False
        np.testing.assert_array_equal(np.isnan(result).all(1), expected)
        np.testing.assert_array_equal(np.isnan(result).any(1), expected)
    nothing, _ = run(gpu, table, tokens(n_tokens), groups, [listed[:0]])
    assert np.isnan(nothing).all()


def test_host_addresses_are_followed_and_device_addresses_are_read_in_place(gpu: GpuBackend) -> None:
    table, _, _kept = layer("one type")
    x, groups = tokens(1), routed(1)
    before = run(gpu, table, x, groups, [everything(groups)])
    entries = torch.zeros((EXPERTS, 4), dtype=torch.int64)
    on_device = dataclasses.replace(table, gate=entries[:, 0], up=entries[:, 1], down=entries[:, 2])
    assert np.isnan(run(gpu, on_device, x, groups, [everything(groups)])[0]).all()
    for i, addresses in enumerate((table.gate, table.up, table.down)):
        entries[:, i] = torch.from_numpy(addresses)
    for a, b in zip(before, run(gpu, on_device, x, groups, [everything(groups)]), strict=True):
        np.testing.assert_array_equal(a, b)
    first, other = groups.expert_ids[0], (groups.expert_ids[0] + 1) % EXPERTS
    for addresses in (table.gate, table.up, table.down):
        addresses[first] = addresses[other]
    assert_reference(run(gpu, table, x, groups, [everything(groups)]), table, x, groups)


def test_all_tokens_to_one_expert(gpu: GpuBackend) -> None:
    table, _, _kept = layer("one type")
    groups, x = group_by_expert(np.full((9, 1), 2, np.int32)), tokens(9)
    assert_reference(run(gpu, table, x, groups, [everything(groups)]), table, x, groups)


@pytest.mark.parametrize("n_tokens", [1, 11])
def test_the_sum_is_taken_in_rank_order(gpu: GpuBackend, n_tokens: int) -> None:
    """1e8 + 1 - 1e8 is 0 in float32 in rank order, and 1 in another."""
    groups = group_by_expert(np.tile(np.array([[5, 1, 3]], np.int32), (n_tokens, 1)))
    values = {5: 1e8, 1: 1.0, 3: -1e8}
    d = torch.empty((3 * n_tokens, 40))
    for g, expert in enumerate(groups.expert_ids):
        d[groups.offsets[g] : groups.offsets[g + 1]] = values[int(expert)]
    out = gpu.expert_combine(d, groups, np.ones((n_tokens, 3), np.float32))
    np.testing.assert_array_equal(out.numpy(), np.zeros((n_tokens, 40)))


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("biased", [False, True])
def test_down_and_sum_in_one_launch_give_the_same_bits(gpu: GpuBackend, mix: str, biased: bool) -> None:
    table, same, _kept = layer(mix, biased=biased)
    groups, weights = routed(1, k=5), np.random.default_rng(1).random((1, 5)).astype(np.float32)
    h, d = run(gpu, table, tokens(1), groups, [everything(groups)])
    together = gpu.expert_down_combine(torch.from_numpy(h), table, groups, weights)
    np.testing.assert_array_equal(together.numpy(), gpu.expert_combine(torch.from_numpy(d), groups, weights).numpy())
    expected_d = np.empty(d.shape, np.float32)
    expert_down_ref(h, same, groups, everything(groups), expected_d)
    expected = expert_combine_ref(expected_d, groups, weights)
    assert np.abs(together.numpy() - expected).max() < GPU_RELATIVE * np.abs(expected).max()


def test_tiles_of_the_worked_example() -> None:
    groups = ExpertGroups(
        np.array([2, 5, 7], np.int32), np.array([0, 3, 4, 6], np.int32), np.array([0, 1, 2, 0, 1, 2], np.int32),
        np.zeros((3, 2), np.int32),
    )  # fmt: skip
    assert tiles_of(groups, np.arange(3), 2).tolist() == [[0, 0], [0, 2], [1, 3], [2, 4]]
    assert tiles_of(groups, np.array([0, 2]), 2).tolist() == [[0, 0], [0, 2], [2, 4]]
    assert tiles_of(groups, np.array([1]), 64).tolist() == [[1, 3]]


def test_shapes_and_units_that_do_not_fit_are_named(gpu: GpuBackend) -> None:
    table, _, _kept = layer("one type")
    groups, wrong = routed(1), torch.zeros((3, HIDDEN + 1))
    with pytest.raises(ValueError, match="experts of 256 x 256"):
        gpu.expert_gate_up(Activations(torch.from_numpy(tokens(1))), table, groups, everything(groups), wrong)
    with pytest.raises(ValueError, match="experts of 256 x 256"):
        gpu.expert_down(wrong, table, groups, everything(groups), torch.zeros((3, HIDDEN)))
    odd, _, _odd_kept = layer("one type", GatedUnit("relu"))
    h = torch.zeros((3, WIDTH))
    with pytest.raises(ValueError, match="relu"):
        gpu.expert_gate_up(Activations(torch.from_numpy(tokens(1))), odd, groups, everything(groups), h)
