"""Each architecture's logits and greedy ids equal transformers', on tiny random models through stock stacked GGUF
files.

Every case runs on every backend, as one prompt, in chunks and token by token; positions past a window and past the
original context of a scaled rotation are reached.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernels.cpu.backend import CpuBackend
from kernels.reference.backend import ReferenceBackend
from models.expert_store import ExpertStore
from models.gguf import GGUFModel
from models.loader import load_model
from models.model import Model
from models.resident import ResidentExperts
from tests.models.architecture_cases import CASES, Case
from tests.tiny_models import hf_greedy, hf_logits, prompt, tiny_model, write_gguf
from tests.tolerances import LOGITS_RELATIVE

N_TOKENS = 25
BACKENDS = {"reference": ReferenceBackend, "cpu": CpuBackend}


@dataclass
class Loaded:
    hf: Any
    ids: np.ndarray
    expected: np.ndarray
    path: Path


@pytest.fixture(scope="module", params=CASES.values(), ids=CASES.keys())
def loaded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    case: Case = request.param
    hf = tiny_model(case.family, **case.fields)
    path = write_gguf(hf, tmp_path_factory.mktemp("tiny") / "model.gguf", case.family, case.keys, case.expanded)
    ids = prompt(N_TOKENS)
    return Loaded(hf, ids, hf_logits(hf, ids), path)


@pytest.fixture(scope="module", params=BACKENDS.values(), ids=BACKENDS.keys())
def model(request: pytest.FixtureRequest, loaded: Loaded) -> Iterator[tuple[Model, ResidentExperts]]:
    backend = request.param()
    with GGUFModel.open(loaded.path) as gguf:
        model = load_model(gguf, backend)
        yield model, ResidentExperts(model, ExpertStore(gguf, model.config), backend)


def run(model: Model, experts: ResidentExperts, ids: np.ndarray, chunk: int) -> np.ndarray:
    """Logits [T, V] with an exact cache, `chunk` tokens a call."""
    cache = model.new_cache(ids.size, "f32", "f32")
    phase = "decode" if chunk == 1 else "prefill"
    parts = [model.forward(ids[i : i + chunk], cache, experts, phase, "all").copy() for i in range(0, ids.size, chunk)]
    assert cache.length == ids.size
    return np.concatenate(parts)


@pytest.mark.parametrize("chunk", [N_TOKENS, 7, 1])
def test_logits_equal_transformers(loaded: Loaded, model: tuple[Model, ResidentExperts], chunk: int) -> None:
    logits = run(*model, loaded.ids, chunk)
    error = np.abs(logits - loaded.expected).max() / np.abs(loaded.expected).max()
    assert error <= LOGITS_RELATIVE


def test_greedy_ids_equal_transformers(loaded: Loaded, model: tuple[Model, ResidentExperts]) -> None:
    ids, n_new = loaded.ids[:9], 5
    net, experts = model
    cache = net.new_cache(ids.size + n_new)
    logits, greedy = net.forward(ids, cache, experts, "prefill"), []
    for _ in range(n_new):
        greedy.append(int(logits.argmax()))
        logits = net.forward(np.array(greedy[-1:]), cache, experts, "decode")
    assert greedy == hf_greedy(loaded.hf, ids, n_new)


def test_a_rolled_back_cache_goes_on_as_if_nothing_had_been(
    loaded: Loaded, model: tuple[Model, ResidentExperts]
) -> None:
    net, experts = model
    cache = net.new_cache(N_TOKENS, "f32", "f32")
    net.forward(loaded.ids[:17], cache, experts, "prefill", "none")
    cache.keep()
    net.forward(loaded.ids[::-1][:8].copy(), cache, experts, "prefill", "none")
    cache.truncate(17)
    logits = net.forward(loaded.ids[17:], cache, experts, "prefill", "all")
    error = np.abs(logits - loaded.expected[17:]).max() / np.abs(loaded.expected).max()
    assert error <= LOGITS_RELATIVE
