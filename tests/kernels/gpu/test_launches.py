"""How many kernels a decoded token launches: a fixed, small number a layer, whether recorded or not."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from triton.runtime.interpreter import GridExecutor

from kernels.gpu.backend import GpuBackend
from kernels.gpu.emulated_calls import EmulatedCalls
from models.expert_store import ExpertStore
from models.gguf import GGUFModel
from models.loader import load_model
from models.resident import ResidentExperts
from pearl_cli.device.graphed_block import record_decoding
from tests.tiny_gguf import tiny_moe, write_gguf

A_LAYER = {
    "norm_kernel": 4,  # before attention and experts; heads of q and k
    "linear_kernel": 5,  # q, k, v, attention output, router matrix
    "rope_write_kernel": 1,
    "attention_kernel": 1,
    "router_kernel": 1,
    "gate_up_kernel": 1,
    "down_kernel": 1,
    "combine_kernel": 2,  # of attention's splits; of experts
}


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Launches by kernel."""
    counts: Counter[str] = Counter()
    launch = GridExecutor.__call__

    def counted(executor: Any, *args: Any, **kwargs: Any) -> Any:
        counts[executor.fn.__name__.strip("_")] += 1
        return launch(executor, *args, **kwargs)

    monkeypatch.setattr(GridExecutor, "__call__", counted)
    return counts


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("num_layers", [1, 3])
def test_launches_of_a_token(
    gpu: GpuBackend, launched: Counter[str], tmp_path: Path, num_layers: int, recorded: bool
) -> None:
    made = tiny_moe("qwen3moe", num_layers=num_layers)
    path = write_gguf(tmp_path / "tiny.gguf", made.metadata, made.tensors)
    with GGUFModel.open(path) as gguf:
        model = load_model(gguf, gpu)
        if recorded:
            assert record_decoding(model, EmulatedCalls(as_array=torch.from_numpy), gpu) == num_layers
        experts = ResidentExperts(model, ExpertStore(gguf, model.config), gpu)
        cache = model.new_cache(16, "f16", "f16")
        for token_id in range(4):
            launched.clear()
            model.forward(np.array([token_id]), cache, experts, "decode", "last")
            once = {"embed_kernel": 1, "norm_kernel": 1, "linear_kernel": 1}
            if recorded and token_id == 1:  # the emulation computes while it records, and undoes it
                assert launched["router_kernel"] == 2 * num_layers
                continue
            assert launched == Counter({name: n * num_layers for name, n in A_LAYER.items()}) + Counter(once)
