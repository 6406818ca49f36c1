"""Layers that were recorded once give, token after token, the bits of the op-by-op run: the position, a window's ring
and recurrent states are read from memory at every replay.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kernels.gpu.backend import GpuBackend
from kernels.gpu.emulated_calls import EmulatedCalls
from kernels.gpu.emulated_graph import record
from models import layer_memory
from models.expert_store import ExpertStore
from models.gguf import GGUFModel
from models.kv_cache import KVCache
from models.loader import load_model
from models.model import Model
from models.resident import ResidentExperts
from pearl_cli.device import graphed_block
from pearl_cli.device.graphed_block import record_decoding
from tests.tiny_models import prompt, tiny_model, write_gguf

CAPACITY, N_PREFILL, N_TOKENS = 24, 2, 10

# Two layers of each, and what they keep: latents, the first layer being dense; a ring and everything, with sinks and
# biases; states of a delta rule and everything, behind a gate; states of a selective
# scan; states of a short convolution; rings and whole caches of
# other shapes, with a feed-forward of two halves.
FAMILIES: dict[str, dict[str, Any]] = {
    "deepseek2": {"num_hidden_layers": 2},
    "gpt-oss": {"num_hidden_layers": 2},
    "qwen3next": {"num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"]},
    "granitehybrid": {"num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"]},
    "lfm2moe": {"num_hidden_layers": 2, "layer_types": ["conv", "full_attention"]},
    "gemma4": {"num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"]},
}


def decode(model: Model, experts: ResidentExperts, cache: KVCache, ids: np.ndarray) -> np.ndarray:
    """Logits of each token, one call a token."""
    return np.array([model.forward(ids[i : i + 1], cache, experts, "decode", "last") for i in range(ids.size)])


@pytest.fixture(params=FAMILIES)
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    file = tmp_path / "tiny.gguf"
    write_gguf(tiny_model(request.param, **FAMILIES[request.param]), file, request.param)
    return file


def test_a_replay_is_the_eager_run(gpu: GpuBackend, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the wrap of every window, over a doubling of what a recording covers, and back."""
    monkeypatch.setattr(graphed_block, "SHORTEST", 4)
    monkeypatch.setattr(layer_memory, "WINDOW_STEP", 2)
    monkeypatch.setattr(layer_memory, "SLOT_ALIGNMENT", 1)
    ids = prompt(N_TOKENS)
    with GGUFModel.open(path) as gguf:
        found = []
        for recorded in (False, True):
            model, calls = load_model(gguf, gpu), EmulatedCalls(1, as_array=torch.from_numpy)
            if recorded:
                assert record_decoding(model, calls, gpu) == model.config.num_layers
            experts = ResidentExperts(model, ExpertStore(gguf, model.config), gpu)
            cache = model.new_cache(CAPACITY, "f32", "f32")
            model.forward(ids[:N_PREFILL], cache, experts, "prefill", "none")
            cache.keep()
            first = decode(model, experts, cache, ids[N_PREFILL:])
            cache.truncate(cache.rewindable(N_PREFILL))
            assert cache.length == N_PREFILL
            found.append(np.concatenate([first, decode(model, experts, cache, ids[5:7])]))
    np.testing.assert_array_equal(found[1], found[0])
    assert all(memory.slots(CAPACITY) < N_TOKENS for memory in model.config.layer_memory if memory.window)
    whole = sum(not memory.window and not memory.state for memory in model.config.layer_memory)
    assert calls.counts["captures"] == 3 * whole + (model.config.num_layers - whole)  # covering 4, 8 and 16, or all
    assert calls.counts["graph replays"] > calls.counts["captures"]


def test_another_cache_is_recorded_anew(gpu: GpuBackend, tmp_path: Path) -> None:
    """A recording holds addresses: those of a cache that is gone must not be written to."""
    file, ids = tmp_path / "tiny.gguf", prompt(6)
    write_gguf(tiny_model("qwen3moe"), file, "qwen3moe")
    with GGUFModel.open(file) as gguf:
        model, calls = load_model(gguf, gpu), EmulatedCalls(1, as_array=torch.from_numpy)
        experts = ResidentExperts(model, ExpertStore(gguf, model.config), gpu)
        wanted = decode(model, experts, model.new_cache(CAPACITY, "f32", "f32"), ids)
        record_decoding(model, calls, gpu)
        for n in (1, 2):
            cache = model.new_cache(CAPACITY, "f32", "f32")
            np.testing.assert_array_equal(decode(model, experts, cache, ids), wanted)
            assert calls.counts["captures"] == n * model.config.num_layers


def test_what_a_recording_keeps_is_what_a_graph_keeps() -> None:
    """Numbers are those of the recording; recording itself changes nothing; unfilled memory is not to be relied on."""
    at, total, left = torch.zeros(1), torch.zeros(4), Counter[str]()
    number = 3.0

    def work() -> None:
        total.add_(at * number)
        taken = torch.empty(2)
        left["sum"] = total + 1
        left["taken"] = taken

    steps = record(work)
    assert total.tolist() == [0.0] * 4
    number = 100.0
    for value, want in ((1.0, 3.0), (2.0, 9.0)):
        at.fill_(value)
        for step in steps:
            step()
        assert total.tolist() == [want] * 4
        assert left["sum"].tolist() == [want + 1] * 4
        assert left["taken"].isnan().all()


@pytest.mark.parametrize(
    ("work", "fault"),
    [
        (lambda: torch.from_numpy(np.zeros(1)), "host's memory"),
        (lambda: torch.zeros(1).numpy(), "host's memory"),
        (lambda: torch.zeros(1).item(), "tell the host"),
    ],
)
def test_what_cannot_be_recorded(work, fault: str) -> None:
    with pytest.raises(RuntimeError, match=fault):
        record(work)
