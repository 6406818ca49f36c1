"""Selection scores, groups, ties, and weights that never see the bonus."""

from __future__ import annotations

import numpy as np
import pytest

from kernels.reference.backend import ReferenceBackend
from kernels.router_spec import RouterSpec
from pearl_cli.routing.bonus import exclude_groups, selection_scores, top_k, unbiased_weights
from pearl_cli.routing.running_range import RunningRange

SPECS = {
    "softmax": RouterSpec(8, 3),
    "softmax_normalised": RouterSpec(8, 3, norm_topk_prob=True, scale=2.5),
    "softmax_topk": RouterSpec(8, 3, gating="softmax_topk"),
    "sigmoid": RouterSpec(8, 3, gating="sigmoid", norm_topk_prob=True),
    "grouped_softmax": RouterSpec(8, 3, num_groups=4, num_groups_used=2),
    "grouped_sigmoid": RouterSpec(8, 3, gating="sigmoid", norm_topk_prob=True, num_groups=4, num_groups_used=2),
}


def logits_and_bias(seed: int, biased: bool) -> tuple[np.ndarray, np.ndarray | None]:
    rng = np.random.default_rng(seed)
    logits = rng.standard_normal((1, 8)).astype(np.float32)
    return logits, rng.standard_normal(8).astype(np.float32) * 0.3 if biased else None


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("name", SPECS)
def test_without_a_bonus_the_choice_and_every_bit_of_its_weights_are_the_models(name: str, biased: bool) -> None:
    spec, backend = SPECS[name], ReferenceBackend()
    for seed in range(40):
        logits, bias = logits_and_bias(seed, biased)
        scores = exclude_groups(selection_scores(logits[0], spec, bias), spec, bias is not None)
        own = top_k(scores, spec.num_experts_per_tok)
        ids, weights = backend.route(logits, spec, bias)
        np.testing.assert_array_equal(own, ids[0])
        forced_ids, forced_weights = unbiased_weights(backend, logits, spec, own)
        np.testing.assert_array_equal(forced_ids, ids)
        np.testing.assert_array_equal(forced_weights, weights)


def test_weights_of_a_steered_choice_are_the_routers_own_scores() -> None:
    """softmax of (0, 1, 2) is (.0900, .2447, .6652); experts 0 and 2 of it, in the order asked for, times 2."""
    spec = RouterSpec(3, 2, scale=2.0)
    logits = np.array([[0.0, 1.0, 2.0]], np.float32)
    ids, weights = unbiased_weights(ReferenceBackend(), logits, spec, np.array([0, 2]))
    assert ids.tolist() == [[0, 2]]
    np.testing.assert_allclose(weights, [[0.18006, 1.33048]], rtol=1e-4)
    normalised = RouterSpec(3, 2, norm_topk_prob=True)
    _, weights = unbiased_weights(ReferenceBackend(), logits, normalised, np.array([0, 2]))
    np.testing.assert_allclose(weights, [[0.1192, 0.8808]], rtol=1e-3)


def test_ties_go_to_the_smaller_id() -> None:
    assert top_k(np.array([1.0, 3.0, 3.0, 2.0, 3.0]), 4).tolist() == [1, 2, 4, 3]


def test_no_bonus_lifts_an_expert_out_of_an_excluded_group() -> None:
    spec = RouterSpec(6, 2, num_groups=3, num_groups_used=1)
    scores = exclude_groups(np.array([0.0, 5.0, 4.0, 4.5, 1.0, 1.0]), spec, biased=False)
    assert scores[:2].tolist() == [0.0, 5.0]
    assert (scores[2:] + 100 == -np.inf).all()
    # By the sum of their two best the second group wins.
    assert np.isfinite(exclude_groups(np.array([0.0, 5.0, 4.0, 4.5, 1.0, 1.0]), spec, biased=True)).tolist() == [
        False, False, True, True, False, False,
    ]  # fmt: skip


def test_the_running_range_starts_with_its_first_value() -> None:
    running = RunningRange(2)
    assert running.update(0, 4.0) == 4.0
    assert running.update(0, 5.0) == pytest.approx(4.0 + 0.01)
    assert np.isnan(running.value[1])
    with pytest.raises(ValueError, match="layer 1 are not numbers"):
        running.update(1, np.nan)
