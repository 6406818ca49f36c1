"""The router's tensors by the names that files give them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kernels.reference.backend import ReferenceBackend
from models.config import ModelConfig
from models.gguf import GGUFModel
from models.moe import MoE
from models.weights import WeightSource
from tests.tiny_gguf import f32, tiny_moe


@pytest.mark.parametrize("name", ["exp_probs_b.bias", "exp_probs_b", "exp_probs_b.weight"])
def test_the_selection_bias_is_found_under_each_of_its_names(name: str, tmp_path: Path) -> None:
    bias, file = np.arange(8, dtype=np.float32), tiny_moe("olmoe")
    file.tensors.append(f32(f"blk.1.{name}", bias))
    with GGUFModel.open(file.write(tmp_path / "m.gguf")) as gguf:
        config = ModelConfig.from_gguf(gguf)
        source = WeightSource(gguf, ReferenceBackend(), config)
        router = MoE.read(source, config, 1).router
        assert router.exp_probs_b is not None
        np.testing.assert_array_equal(router.exp_probs_b, bias)
        assert MoE.read(source, config, 0).router.exp_probs_b is None
