"""SparseMixer's routing on a device equals the reference: near ties, forced choices, broken logits."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kernels.gpu.backend import GpuBackend
from kernels.reference.router import route_ref
from kernels.router_spec import RouterSpec
from tests.tolerances import FLOAT32_ROW_RELATIVE

SPEC = RouterSpec(6, 2, "sparsemixer", mixer_threshold=0.02)


def near_ties(n_tokens: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    base = rng.uniform(-3, 3, (n_tokens, 1))
    return (base * (1 + 0.015 * rng.standard_normal((n_tokens, 6)))).astype(np.float32)


@pytest.mark.parametrize("bias", [None, np.array([0, 0, 0, 0, 0, 9], np.float32)])
def test_routing_equals_the_reference(gpu: GpuBackend, bias: np.ndarray | None) -> None:
    logits = near_ties(50)
    found_ids, found = gpu.route(torch.from_numpy(logits), SPEC, None if bias is None else torch.from_numpy(bias))
    ids, weights = route_ref(logits, SPEC, bias)
    np.testing.assert_array_equal(found_ids, ids)
    np.testing.assert_allclose(found, weights, rtol=FLOAT32_ROW_RELATIVE)


def test_logits_that_are_no_numbers_are_refused(gpu: GpuBackend) -> None:
    logits = near_ties(3)
    logits[1, 4] = np.nan
    with pytest.raises(ValueError, match="token 1"):
        gpu.route(torch.from_numpy(logits), SPEC)
