"""SparseMixer's routing on a device equals the reference: near ties, forced choices, broken logits; and a model that
routes so gives transformers' logits.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from kernels.backend import RouterSpec
from kernels.gpu.backend import GpuBackend
from kernels.reference.router import route_ref
from models.expert_store import ExpertStore
from models.gguf import GGUFModel
from models.loader import load_model
from models.resident import ResidentExperts
from tests.tiny_models import hf_logits, prompt, tiny_model, write_gguf
from tests.tolerances import FLOAT32_ROW_RELATIVE, LOGITS_RELATIVE

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


def test_a_tiny_model(gpu: GpuBackend, tmp_path: Path) -> None:
    hf, ids = tiny_model("phimoe"), prompt(3)
    with GGUFModel.open(write_gguf(hf, tmp_path / "m.gguf", "phimoe")) as gguf:
        model = load_model(gguf, gpu)
        experts = ResidentExperts(model, ExpertStore(gguf, model.config), gpu)
    found = model.forward(ids, model.new_cache(3, "f32", "f32"), experts, "prefill", "all")
    expected = hf_logits(hf, ids)
    assert np.abs(found - expected).max() <= LOGITS_RELATIVE * np.abs(expected).max()
