"""GPU block decoding bit for bit, and matrices times few and many tokens, through Triton's interpreter."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from quant_blocks import random_rows

from kernels.backend import Activations, GatedUnit, Weight
from kernels.gpu.backend import GpuBackend
from kernels.gpu.lane_order import lane_order
from kernels.gpu.linear import linear
from kernels.gpu.matmul import matmul
from kernels.gpu.tiling import INTERPRETER, SLOTS, MatmulTile, RowTile
from kernels.quant_types import QuantType, block_size
from kernels.reference.dequant import dequantize_rows
from kernels.reference.linear import gated_mlp_ref, linear_ref
from tests.tolerances import GPU_RELATIVE, TF32_RELATIVE

MIXED = (QuantType.Q8_0, QuantType.Q4_0, QuantType.IQ4_NL, QuantType.F32)
TYPES = pytest.mark.parametrize("quant_type", list(SLOTS), ids=lambda t: t.name)


def rows_of(quant_type: QuantType, n_rows: int, n_cols: int, seed: int = 0, extreme: bool = False) -> np.ndarray:
    rows = random_rows(np.random.default_rng(seed), quant_type, n_rows, n_cols, extreme)
    return np.ascontiguousarray(rows).view(np.uint8)


def both(gpu: GpuBackend, quant_type: QuantType, n_rows: int, n_cols: int, seed: int = 0) -> tuple[Weight, Weight]:
    """The same weight for the GPU and for the reference."""
    rows = rows_of(quant_type, n_rows, n_cols, seed)
    return gpu.weight(rows, quant_type, n_rows, n_cols), Weight(rows, quant_type, n_rows, n_cols)


def tokens(n_tokens: int, n_cols: int) -> np.ndarray:
    return np.random.default_rng(n_tokens).standard_normal((n_tokens, n_cols)).astype(np.float32)


def assert_close(found: torch.Tensor, expected: np.ndarray, relative: float = GPU_RELATIVE) -> None:
    assert tuple(found.shape) == expected.shape
    error = np.abs(found.numpy() - expected).max() / np.abs(expected).max()
    assert error < relative  # a NaN is not


@TYPES
@pytest.mark.parametrize("extreme", [False, True])
def test_blocks_are_decoded_to_the_bit(gpu: GpuBackend, quant_type: QuantType, extreme: bool) -> None:
    n_cols = 512 if block_size(quant_type) == 256 else 96
    rows = rows_of(quant_type, 7, n_cols, extreme=extreme)
    ids = np.array([6, 0, 3, 6])
    found = gpu.embed(gpu.weight(rows, quant_type, 7, n_cols), ids)
    np.testing.assert_array_equal(found.numpy(), dequantize_rows(rows, quant_type, n_cols)[ids])


@TYPES
@pytest.mark.parametrize("n_tokens", [1, 3])
def test_few_tokens(gpu: GpuBackend, quant_type: QuantType, n_tokens: int) -> None:
    """33 rows and a width that no step divides, with tiles of a GPU: several programs, steps and masked edges."""
    n_cols = 768 if block_size(quant_type) == 256 else 352
    weight, same = both(gpu, quant_type, 33, n_cols)
    x = tokens(n_tokens, n_cols)
    out = torch.full((n_tokens, 33), torch.nan)
    linear(torch.from_numpy(x), weight, None, out, INTERPRETER, RowTile(4 if n_tokens > 1 else 1, 16, 64, 1))
    assert_close(out, linear_ref(x, same))


@TYPES
def test_many_tokens(gpu: GpuBackend, quant_type: QuantType) -> None:
    n_cols = 768 if block_size(quant_type) == 256 else 352
    weight, same = both(gpu, quant_type, 33, n_cols)
    x = tokens(19, n_cols)
    out = torch.full((19, 33), torch.nan)
    ordered = lane_order(torch.from_numpy(x), quant_type, INTERPRETER)
    matmul(ordered, weight, None, out, INTERPRETER, MatmulTile(16, 32, 64, 1, 1))
    assert_close(out, linear_ref(x, same))


@pytest.mark.parametrize("n_tokens", [1, 8, 9])
def test_weights_side_by_side_with_a_bias(gpu: GpuBackend, n_tokens: int) -> None:
    pairs = [both(gpu, t, n, 256, n) for t, n in zip(MIXED, (64, 33, 1, 17), strict=True)]
    x, bias = tokens(n_tokens, 256), tokens(1, 115)[0]
    found = gpu.linear(Activations(torch.from_numpy(x)), *(p[0] for p in pairs), bias=torch.from_numpy(bias))
    assert_close(found, linear_ref(x, *(p[1] for p in pairs), bias=bias))


def test_rows_of_activations_may_lie_apart(gpu: GpuBackend) -> None:
    weight, same = both(gpu, QuantType.Q8_0, 5, 64)
    for n_tokens in (2, 12):
        wide = tokens(n_tokens, 200)
        found = gpu.linear(Activations(torch.from_numpy(wide)[:, 100:164]), weight)
        assert_close(found, linear_ref(wide[:, 100:164], same))


@pytest.mark.parametrize("kind", ["silu", "gelu", "clamped"])
@pytest.mark.parametrize("n_tokens", [1, 10])
def test_gated_mlp(gpu: GpuBackend, kind: str, n_tokens: int) -> None:
    unit = GatedUnit(kind, 1.702, 0.8) if kind == "clamped" else GatedUnit(kind)
    gate, up = both(gpu, QuantType.Q4_0, 96, 64, 1), both(gpu, QuantType.Q8_0, 96, 64, 2)
    down, x = both(gpu, QuantType.F16, 64, 96, 3), tokens(n_tokens, 64)
    found = gpu.gated_mlp(Activations(torch.from_numpy(x)), gate[0], up[0], down[0], unit)
    assert_close(found, gated_mlp_ref(x, gate[1], up[1], down[1], unit))


def test_a_unit_is_not_taken_for_another_of_the_same_weights(gpu: GpuBackend) -> None:
    gate, down = both(gpu, QuantType.F16, 32, 32, 1), both(gpu, QuantType.F16, 32, 32, 3)
    x = tokens(1, 32)
    for unit in (GatedUnit(), GatedUnit("gelu"), GatedUnit("clamped", 1.0, 0.1), GatedUnit("clamped", 1.0, 0.2)):
        found = gpu.gated_mlp(Activations(torch.from_numpy(x)), gate[0], gate[0], down[0], unit)
        assert_close(found, gated_mlp_ref(x, gate[1], gate[1], down[1], unit))


@TYPES
def test_tensor_core_precision_is_that_of_eleven_bits(quant_type: QuantType, gpu: GpuBackend) -> None:
    """The branch that GPUs take: numbers rounded to TF32, to nearest, so that errors do not add up."""
    from kernels.gpu import matmul as module

    if quant_type == QuantType.F32:
        pytest.skip("F32 weights are multiplied in float32")
    weight, same = both(gpu, quant_type, 32, 512)
    x, out = tokens(16, 512), torch.full((16, 32), torch.nan)
    ordered = lane_order(torch.from_numpy(x), quant_type, INTERPRETER)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "weight_precision", lambda *_: "tf32")
        matmul(ordered, weight, None, out, INTERPRETER, MatmulTile(16, 32, 64, 1, 1))
    assert_close(out, linear_ref(x, same), TF32_RELATIVE)
    assert np.abs(out.numpy() - linear_ref(x, same)).max() > 0


def test_mistakes_of_the_caller_are_named(gpu: GpuBackend) -> None:
    narrow, _ = both(gpu, QuantType.Q8_0, 4, 64)
    with pytest.raises(ValueError, match="width 96"):
        gpu.linear(Activations(torch.zeros((1, 96))), narrow)
    with pytest.raises(ValueError, match="takes 272 uint8, got 271"):
        gpu.weight(np.zeros(271, np.uint8), QuantType.Q8_0, 4, 64)
    with pytest.raises(ValueError, match=r"Q2_K has no GPU kernel.*Q4_K"):
        gpu.weight(np.zeros(84, np.uint8), QuantType.Q2_K, 1, 256)
    with pytest.raises(ValueError, match=r"0\.\.3, got -1\.\.2"):
        gpu.embed(narrow, np.array([2, -1]))
