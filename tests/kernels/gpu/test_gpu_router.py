"""GPU routing: every gating rule, ties, groups, and the reference on random logits."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kernels.backend import NotNumbersError
from kernels.gpu.backend import GpuBackend
from kernels.reference.router import route_ref
from kernels.router_spec import RouterSpec
from tests.tolerances import FLOAT32_ROW_RELATIVE, PAPER_DECIMALS

LOGITS = np.array([[2.0, 1.0, 0.0, -1.0]], np.float32)


def route(
    gpu: GpuBackend, logits: np.ndarray, spec: RouterSpec, bias: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    ids, weights = gpu.route(torch.from_numpy(logits), spec, None if bias is None else torch.from_numpy(bias))
    assert (ids.dtype, weights.dtype) == (np.int32, np.float32)
    return ids, weights


@pytest.mark.parametrize(
    ("spec", "bias", "ids", "weights"),
    [
        (RouterSpec(4, 2), None, [0, 1], [0.643914, 0.236883]),
        (RouterSpec(4, 2, norm_topk_prob=True), None, [0, 1], [0.731059, 0.268941]),
        (RouterSpec(4, 1, norm_topk_prob=True), None, [0], [1.0]),
        (RouterSpec(4, 2, "sigmoid"), None, [0, 1], [0.880797, 0.731059]),
        (RouterSpec(4, 2, "softmax_topk"), None, [0, 1], [0.731059, 0.268941]),
        (RouterSpec(4, 2, "sigmoid", True), [0, 0, 0, 5], [3, 0], [0.233915, 0.766085]),
        (RouterSpec(4, 2, "sigmoid", True, 2.5), [0, 0, 0, 5], [3, 0], [0.584788, 1.915212]),
    ],
)
def test_worked_examples(
    gpu: GpuBackend, spec: RouterSpec, bias: list[float] | None, ids: list[int], weights: list[float]
) -> None:
    found_ids, found = route(gpu, LOGITS, spec, None if bias is None else np.array(bias, np.float32))
    assert found_ids.tolist() == [ids]
    np.testing.assert_allclose(found, [weights], atol=PAPER_DECIMALS, rtol=0)


def test_groups_rank_by_maximum_or_by_the_two_best(gpu: GpuBackend) -> None:
    p = np.array([[0.9, 0.1, 0.6, 0.6]])
    logits, spec = np.log(p / (1 - p)).astype(np.float32), RouterSpec(4, 2, "sigmoid", num_groups=2, num_groups_used=1)
    assert route(gpu, logits, spec)[0].tolist() == [[0, 1]]
    assert route(gpu, logits, spec, np.zeros(4, np.float32))[0].tolist() == [[2, 3]]


def test_excluded_groups_lose_to_negative_scores(gpu: GpuBackend) -> None:
    bias = np.array([-0.8, -0.7, -1.0, -0.9], np.float32)
    spec = RouterSpec(4, 2, "sigmoid", num_groups=2, num_groups_used=1)
    assert route(gpu, np.zeros((1, 4), np.float32), spec, bias)[0].tolist() == [[1, 0]]


def test_ties_go_to_the_smaller_id_and_near_ties_to_the_larger_logit(gpu: GpuBackend) -> None:
    assert route(gpu, np.zeros((2, 6), np.float32), RouterSpec(6, 3))[0].tolist() == [[0, 1, 2]] * 2
    close = np.array([[30.0, 30.000002, -9.0]], np.float32)  # scores of both are 0.5 in float32
    for gating in ("softmax", "sigmoid", "softmax_topk"):
        assert route(gpu, close, RouterSpec(3, 1, gating))[0].tolist() == [[1]]


def test_logits_of_any_size_stay_finite(gpu: GpuBackend) -> None:
    logits = np.array([[3e38, -3e38, 1e30, 0.0]], np.float32)
    for gating in ("softmax", "sigmoid", "softmax_topk"):
        with np.errstate(over="ignore"):  # 3e38 - -3e38 is inf, of which exp takes the negative
            assert np.isfinite(route(gpu, logits, RouterSpec(4, 2, gating))[1]).all()


@pytest.mark.parametrize("gating", ["softmax", "sigmoid", "softmax_topk"])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(("n_experts", "groups"), [(61, (1, 1)), (60, (5, 2)), (64, (8, 3)), (6, (6, 4))])
def test_random_logits_give_the_reference(
    gpu: GpuBackend, gating: str, biased: bool, n_experts: int, groups: tuple[int, int]
) -> None:
    rng = np.random.default_rng(5)
    logits = rng.standard_normal((9, n_experts)).astype(np.float32)
    bias = rng.standard_normal(n_experts).astype(np.float32) if biased else None
    spec = RouterSpec(n_experts, min(6, 4 if n_experts == 6 else 6), gating, True, 1.5, *groups)
    ids, weights = route(gpu, logits, spec, bias)
    expected_ids, expected = route_ref(logits, spec, bias)
    np.testing.assert_array_equal(ids, expected_ids)
    assert np.abs(weights - expected).max() < FLOAT32_ROW_RELATIVE * np.abs(expected).max()


def test_unknown_gating_and_nan_are_refused(gpu: GpuBackend) -> None:
    with pytest.raises(ValueError, match="softmax_topk"):
        route(gpu, LOGITS, RouterSpec(4, 2, "relu"))
    with pytest.raises(NotNumbersError, match="token 1"):
        route(gpu, np.array([[1, 2, 3], [np.nan, np.nan, 1]], np.float32), RouterSpec(3, 2))
