"""SparseMixer's weights: transformers' own function on logits with near ties, and choices that are not the router's."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from kernels.cpu.router import route
from kernels.reference.router import route_ref
from kernels.router_spec import RouterSpec
from tests.tolerances import FLOAT32_ROW_RELATIVE, PAPER_DECIMALS

SPEC = RouterSpec(6, 2, "sparsemixer", mixer_threshold=0.02)
BOTH = pytest.mark.parametrize("form", [route, route_ref], ids=["cpu", "reference"])
Route = Callable[..., tuple[np.ndarray, np.ndarray]]


def near_ties(n_tokens: int) -> np.ndarray:
    """Logits of which many lie within 2 % of each other, of either sign."""
    rng = np.random.default_rng(0)
    base = rng.uniform(-3, 3, (n_tokens, 1))
    return (base * (1 + 0.015 * rng.standard_normal((n_tokens, 6)))).astype(np.float32)


@BOTH
def test_weights_are_those_of_transformers(form: Route) -> None:
    torch = pytest.importorskip("torch", reason="transformers is the oracle")
    from transformers.models.phimoe.modeling_phimoe import sparsemixer

    logits = near_ties(200)
    expected, ids = sparsemixer(torch.from_numpy(logits).double(), 0.01, training=False)
    found_ids, found = form(logits, SPEC)
    np.testing.assert_array_equal(found_ids, ids.numpy())
    np.testing.assert_allclose(found, expected.numpy(), rtol=FLOAT32_ROW_RELATIVE)
    assert ((found > 0.1) & (found < 0.9)).any(), "no tie was near"


@BOTH
def test_experts_far_behind_the_best_do_not_count(form: Route) -> None:
    ids, weights = form(np.array([[2.0, 1.0, 0.99, 0.0, -1.0, -2.0]], np.float32), SPEC)
    assert ids.tolist() == [[0, 1]]
    np.testing.assert_allclose(weights, [[1.0, 0.502500]], atol=PAPER_DECIMALS, rtol=0)  # 1 / (1 + e^-0.01)


@BOTH
def test_a_choice_that_is_not_the_routers_counts_itself(form: Route) -> None:
    """Selection bias sends the first choice to the last expert: its share of e^-2 against the best one's e^2."""
    bias = np.array([0, 0, 0, 0, 0, 9], np.float32)
    ids, weights = form(np.array([[2.0, 1.0, 0.5, 0.0, -1.0, -2.0]], np.float32), SPEC, bias)
    assert ids.tolist() == [[5, 0]]
    np.testing.assert_allclose(weights, [[0.017986, 1.0]], atol=PAPER_DECIMALS, rtol=0)
