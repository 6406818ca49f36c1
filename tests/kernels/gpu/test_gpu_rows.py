"""GPU norms, gates, convolution, delta rule and selective scan against the reference."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kernels.delta_rule import DeltaRule
from kernels.gpu.backend import GpuBackend
from kernels.reference.conv import causal_conv_ref
from kernels.reference.delta_rule import delta_rule_ref
from kernels.reference.gates import gated_norm_ref, sigmoid_gate_ref
from kernels.reference.norm import head_norm_ref, layer_norm_ref, norm_ref
from kernels.reference.selective_scan import selective_scan_ref
from kernels.selective_scan import SelectiveScan
from tests.tolerances import FLOAT32_RELATIVE, FLOAT32_ROW_RELATIVE


def random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def relative_error(found: torch.Tensor, expected: np.ndarray) -> float:
    return float(np.abs(found.numpy() - expected).max() / np.abs(expected).max())


@pytest.mark.parametrize("width", [1, 33, 63, 511, 2048])
@pytest.mark.parametrize("n_tokens", [1, 3])
def test_norm(gpu: GpuBackend, width: int, n_tokens: int) -> None:
    x, weight = random(n_tokens, width + 3)[:, 2 : width + 2], random(width, seed=1)
    found = gpu.norm(torch.from_numpy(x), torch.from_numpy(weight), 1e-5).x
    assert relative_error(found, norm_ref(x, weight, 1e-5)) < FLOAT32_ROW_RELATIVE


def test_rows_longer_than_a_block_are_walked_twice(gpu: GpuBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    from kernels.gpu import norm as module
    from kernels.gpu.tiling import Device

    monkeypatch.setattr(module, "MAX_BLOCK", 128)
    x, weight = random(2, 300), random(300, seed=1)
    found = module.norm(torch.from_numpy(x), torch.from_numpy(weight), 1e-5, Device("sm_90", 132), gpu.memory)
    assert relative_error(found, norm_ref(x, weight, 1e-5)) < FLOAT32_ROW_RELATIVE


@pytest.mark.parametrize("width", [8, 96])
@pytest.mark.parametrize("gated", [False, True])
def test_head_norm_works_in_place_on_a_slice(gpu: GpuBackend, width: int, gated: bool) -> None:
    before, weight, gate = random(3, 5 * width), random(width, seed=1), random(3, 3 * width, seed=2)
    rows = torch.from_numpy(before.copy())
    part, old = rows[:, width : 4 * width], before[:, width : 4 * width]
    if gated:
        found = gpu.gated_norm(part, torch.from_numpy(gate), torch.from_numpy(weight), 1e-6)
        expected = gated_norm_ref(old, gate, weight, 1e-6)
    else:
        found, expected = gpu.head_norm(part, torch.from_numpy(weight), 1e-6), head_norm_ref(old, weight, 1e-6)
    assert found is part
    assert relative_error(part, expected) < FLOAT32_ROW_RELATIVE
    np.testing.assert_array_equal(rows[:, :width].numpy(), before[:, :width])
    np.testing.assert_array_equal(rows[:, 4 * width :].numpy(), before[:, 4 * width :])


@pytest.mark.parametrize(("width", "block"), [(33, 4096), (300, 128)])
def test_layer_norm(gpu: GpuBackend, width: int, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mean far from 0, which must not take digits of the deviation; one block a row, and several."""
    from kernels.gpu import layer_norm as module
    from kernels.gpu.tiling import Device

    monkeypatch.setattr(module, "MAX_BLOCK", block)
    x, weight, bias = random(3, width) + 9, random(width, seed=1), random(width, seed=2)
    on_gpu = [torch.from_numpy(array) for array in (x, weight, bias)]
    expected = layer_norm_ref(x, weight, bias, 1e-5)
    assert relative_error(gpu.layer_norm(*on_gpu, 1e-5).x, expected) < FLOAT32_RELATIVE
    found = module.layer_norm(*on_gpu, 1e-5, Device("sm_90", 132), gpu.memory)
    assert relative_error(found, expected) < FLOAT32_RELATIVE
    with pytest.raises(ValueError, match="bias of 5"):
        gpu.layer_norm(on_gpu[0], on_gpu[1], torch.ones(5), 1e-5)


def test_a_norm_weight_that_does_not_fit_is_refused(gpu: GpuBackend) -> None:
    for op in (gpu.norm, gpu.head_norm):
        with pytest.raises(ValueError, match="norm weight of 5"):
            op(torch.zeros((2, 12)), torch.ones(5), 1e-5)


def test_sigmoid_gate_in_place(gpu: GpuBackend) -> None:
    before, gate = random(3, 1500), 50 * random(3, 1400, seed=1)
    rows = torch.from_numpy(before.copy())
    gpu.sigmoid_gate(rows[:, 100:], torch.from_numpy(gate))
    assert relative_error(rows[:, 100:], sigmoid_gate_ref(before[:, 100:], gate)) < FLOAT32_ROW_RELATIVE
    np.testing.assert_array_equal(rows[:, :100].numpy(), before[:, :100])


@pytest.mark.parametrize("calls", [(1, 1, 1, 1, 1), (20, 1), (2, 5), (16,), (1, 40)])
@pytest.mark.parametrize("silu", [False, True])
def test_causal_conv_over_several_calls(gpu: GpuBackend, calls: tuple[int, ...], silu: bool) -> None:
    width, state = 150, random(3, 150, seed=3)
    kernel, on_gpu = random(4, width, seed=4), torch.from_numpy(state.copy())
    for i, n_tokens in enumerate(calls):
        x = random(n_tokens, width, seed=i)
        found = gpu.causal_conv(torch.from_numpy(x), torch.from_numpy(kernel), on_gpu, silu)
        assert relative_error(found, causal_conv_ref(x, kernel, state, silu)) < 2 * FLOAT32_ROW_RELATIVE
        np.testing.assert_array_equal(on_gpu.numpy(), state)


@pytest.mark.parametrize("tiled", [False, True])
@pytest.mark.parametrize("n_tokens", [1, 6])
def test_delta_rule(gpu: GpuBackend, tiled: bool, n_tokens: int) -> None:
    keys, heads, key_dim, value_dim = 2, 6, 16, 24
    decay, dt_bias = -np.abs(random(heads)), random(heads, seed=1)
    rule = DeltaRule(keys, heads, key_dim, value_dim, decay, dt_bias, tiled)
    on_gpu = DeltaRule(keys, heads, key_dim, value_dim, torch.from_numpy(decay), torch.from_numpy(dt_bias), tiled)
    qkv = random(n_tokens, 2 * keys * key_dim + heads * value_dim)
    gates = random(n_tokens, 2 * heads, seed=2)
    state = random(heads, key_dim, value_dim, seed=3)
    copied = torch.from_numpy(state.copy())
    both = torch.from_numpy(gates)
    found = gpu.delta_rule(torch.from_numpy(qkv), both[:, :heads], both[:, heads:], on_gpu, copied)
    expected = delta_rule_ref(qkv, gates[:, :heads], gates[:, heads:], rule, state)
    assert relative_error(found, expected) < FLOAT32_RELATIVE
    assert relative_error(copied, state) < FLOAT32_RELATIVE


@pytest.mark.parametrize("calls", [(1, 1), (20,), (3, 4)])
def test_causal_conv_with_a_bias(gpu: GpuBackend, calls: tuple[int, ...]) -> None:
    width, state, bias = 150, random(3, 150, seed=3), random(150, seed=5)
    kernel, on_gpu = random(4, width, seed=4), torch.from_numpy(state.copy())
    for i, n_tokens in enumerate(calls):
        x = random(n_tokens, width, seed=i)
        inputs = map(torch.from_numpy, (x, kernel))
        found = gpu.causal_conv(*inputs, on_gpu, True, torch.from_numpy(bias))
        assert relative_error(found, causal_conv_ref(x, kernel, state, True, bias)) < 2 * FLOAT32_ROW_RELATIVE


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("calls", [(1, 1), (6, 1)])
def test_selective_scan_over_several_calls(gpu: GpuBackend, groups: int, calls: tuple[int, ...]) -> None:
    heads, state_size, head_dim = 6, 24, 20
    constants = -np.abs(random(heads)), random(heads, seed=1), random(heads, seed=2)
    scan = SelectiveScan(groups, heads, state_size, head_dim, *constants)
    there = SelectiveScan(groups, heads, state_size, head_dim, *map(torch.from_numpy, constants))
    state = random(heads, state_size, head_dim, seed=3)
    on_gpu, width = torch.from_numpy(state.copy()), heads * head_dim + 2 * groups * state_size
    for i, n_tokens in enumerate(calls):
        rows = random(n_tokens, width + heads, seed=i)
        xbc, dt = rows[:, :width], rows[:, width:]
        found = gpu.selective_scan(torch.from_numpy(rows)[:, :width], torch.from_numpy(rows)[:, width:], there, on_gpu)
        assert relative_error(found, selective_scan_ref(xbc, dt, scan, state)) < FLOAT32_RELATIVE
        assert relative_error(on_gpu, state) < FLOAT32_RELATIVE
