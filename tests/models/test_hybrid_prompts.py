"""Prompts of hybrid models long enough that the delta rule goes by chunks: transformers' logits across the borders of
chunks, in pieces, from a kept state on, and behind single tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from kernels.cpu.backend import CpuBackend
from kernels.cpu.delta_chunks import CHUNK
from models.expert_store import ExpertStore
from models.gguf import GGUFModel
from models.loader import load_model
from models.model import Model
from models.resident import ResidentExperts
from tests.tiny_models import hf_logits, prompt, tiny_model, write_gguf
from tests.tolerances import LOGITS_RELATIVE

IDS = prompt(3 * CHUNK + 5)
Loaded = tuple[Any, Model, ResidentExperts]


@pytest.fixture(scope="module", params=["qwen3next", "qwen35moe"])
def loaded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loaded]:
    hf, backend = tiny_model(request.param), CpuBackend(2)
    path = write_gguf(hf, tmp_path_factory.mktemp("hybrid") / "model.gguf", request.param)
    with GGUFModel.open(path) as gguf:
        model = load_model(gguf, backend)
        yield hf_logits(hf, IDS), model, ResidentExperts(model, ExpertStore(gguf, model.config), backend)


def assert_close(found: np.ndarray, expected: np.ndarray) -> None:
    assert np.abs(found - expected).max() <= LOGITS_RELATIVE * np.abs(expected).max()


@pytest.mark.parametrize("pieces", [(IDS.size,), (CHUNK, CHUNK, CHUNK + 5), (40, 1, 1, 19, 40), (17, IDS.size - 17)])
def test_logits_in_pieces_are_transformers(loaded: Loaded, pieces: tuple[int, ...]) -> None:
    expected, model, experts = loaded
    cache, ends, parts = model.new_cache(IDS.size, "f32", "f32"), np.cumsum(pieces), []
    for n_tokens, end in zip(pieces, ends, strict=True):
        phase = "prefill" if n_tokens > 1 else "decode"
        logits = model.forward(IDS[end - n_tokens : end], cache, experts, phase, "all")
        assert logits is not None
        parts.append(logits.copy())
    assert_close(np.concatenate(parts), expected)


def test_a_prompt_goes_on_from_a_kept_state(loaded: Loaded) -> None:
    """A turn that departs from the last one goes back to the copy, and its prompt by chunks from there."""
    expected, model, experts = loaded
    kept = CHUNK + 7
    cache = model.new_cache(IDS.size, "f32", "f32")
    model.forward(IDS[:kept], cache, experts, "prefill", "none")
    cache.keep()
    model.forward(IDS[::-1][: CHUNK + 1].copy(), cache, experts, "prefill", "none")
    assert cache.rewindable(kept + 3) == kept
    cache.truncate(kept)
    logits = model.forward(IDS[kept:], cache, experts, "prefill", "all")
    assert logits is not None
    assert_close(logits, expected[kept:])
