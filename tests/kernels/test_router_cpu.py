"""CPU routing: the worked examples of every gating rule, and the reference on random logits."""

from __future__ import annotations

import numpy as np
import pytest

from kernels.backend import NotNumbersError
from kernels.cpu.router import route
from kernels.reference.router import route_ref
from kernels.router_spec import RouterSpec
from tests.tolerances import FLOAT32_ROW_RELATIVE, PAPER_DECIMALS

LOGITS = np.array([[2.0, 1.0, 0.0, -1.0]], np.float32)


def check(spec: RouterSpec, ids: list[int], weights: list[float], bias: list[float] | None = None) -> None:
    found_ids, found = route(LOGITS, spec, None if bias is None else np.array(bias, np.float32))
    assert found_ids.dtype == np.int32
    assert found.dtype == np.float32
    assert found_ids.tolist() == [ids]
    np.testing.assert_allclose(found, [weights], atol=PAPER_DECIMALS, rtol=0)


def test_softmax_weights_are_not_renormalised_unless_asked() -> None:
    check(RouterSpec(4, 2), [0, 1], [0.643914, 0.236883])
    check(RouterSpec(4, 2, norm_topk_prob=True), [0, 1], [0.731059, 0.268941])
    check(RouterSpec(4, 1, norm_topk_prob=True), [0], [1.0])


def test_sigmoid_and_softmax_over_the_chosen() -> None:
    check(RouterSpec(4, 2, "sigmoid"), [0, 1], [0.880797, 0.731059])
    check(RouterSpec(4, 2, "softmax_topk"), [0, 1], [0.731059, 0.268941])


def test_selection_bias_never_enters_the_weights() -> None:
    bias = [0.0, 0.0, 0.0, 5.0]
    check(RouterSpec(4, 2, "sigmoid", norm_topk_prob=True), [3, 0], [0.233915, 0.766085], bias)
    check(RouterSpec(4, 2, "sigmoid", norm_topk_prob=True, scale=2.5), [3, 0], [0.584788, 1.915212], bias)


@pytest.mark.parametrize(("normalise", "total"), [(True, 2.5), (False, 2.5 * 0.880797)])
def test_scale_is_applied_once_with_and_without_normalising(normalise: bool, total: float) -> None:
    _, weights = route(LOGITS, RouterSpec(4, 2, norm_topk_prob=normalise, scale=2.5))
    assert weights.sum() == pytest.approx(total, abs=3 * PAPER_DECIMALS)


def logits_of_sigmoid_scores(*scores: float) -> np.ndarray:
    p = np.array([scores], np.float64)
    return np.log(p / (1 - p)).astype(np.float32)


def test_groups_rank_by_maximum_or_by_the_two_best() -> None:
    logits = logits_of_sigmoid_scores(0.9, 0.1, 0.6, 0.6)
    spec = RouterSpec(4, 2, "sigmoid", num_groups=2, num_groups_used=1)
    assert route(logits, spec)[0].tolist() == [[0, 1]]
    assert route(logits, spec, np.zeros(4, np.float32))[0].tolist() == [[2, 3]]
    assert route(logits, RouterSpec(4, 2, "sigmoid"))[0].tolist() == [[0, 2]]


def test_excluded_groups_lose_to_negative_scores() -> None:
    """Biased scores [-.3, -.2 | -.5, -.4]: filling the excluded group with 0 would pick from it."""
    bias = np.array([-0.8, -0.7, -1.0, -0.9], np.float32)
    spec = RouterSpec(4, 2, "sigmoid", num_groups=2, num_groups_used=1)
    assert route(np.zeros((1, 4), np.float32), spec, bias)[0].tolist() == [[1, 0]]


def test_ties_go_to_the_smaller_id() -> None:
    assert route(np.zeros((2, 6), np.float32), RouterSpec(6, 3))[0].tolist() == [[0, 1, 2]] * 2


def test_logits_of_any_size_stay_finite() -> None:
    logits = np.array([[3e38, -3e38, 1e30, 0.0]], np.float32)
    for gating in ("softmax", "sigmoid", "softmax_topk"):
        assert np.isfinite(route(logits, RouterSpec(4, 2, gating))[1]).all()


@pytest.mark.parametrize("gating", ["softmax", "sigmoid", "softmax_topk"])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("groups", [(1, 1), (8, 3)])
def test_random_logits_give_the_reference(gating: str, biased: bool, groups: tuple[int, int], nan_poison: None) -> None:
    rng = np.random.default_rng(5)
    logits = rng.standard_normal((40, 64)).astype(np.float32)
    bias = rng.standard_normal(64).astype(np.float32) if biased else None
    spec = RouterSpec(64, 6, gating, True, 1.5, *groups)
    ids, weights = route(logits, spec, bias)
    expected_ids, expected = route_ref(logits, spec, bias)
    np.testing.assert_array_equal(ids, expected_ids)
    assert np.abs(weights - expected).max() < FLOAT32_ROW_RELATIVE * np.abs(expected).max()


def test_unknown_gating_and_nan_are_refused() -> None:
    with pytest.raises(ValueError, match="softmax_topk"):
        route(LOGITS, RouterSpec(4, 2, "relu"))
    with pytest.raises(NotNumbersError, match="token 1"):
        route(np.array([[1, 2, 3], [np.nan, np.nan, 1]], np.float32), RouterSpec(3, 2))
