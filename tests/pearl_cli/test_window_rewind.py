"""A conversation that departs from the old one further back than the window layers keep is computed again, and said."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kernels.cpu.backend import CpuBackend
from models import layer_memory
from models.expert_store import ExpertStore
from models.gguf import GGUFModel
from models.loader import load_model
from models.resident import ResidentExperts
from pearl_cli.engine import Engine
from tests.tiny_models import prompt, tiny_model, write_gguf

RING = 64
OLD = prompt(150).tolist()


class Greedy:
    def sample(self, logits: np.ndarray, recent: object) -> int:
        return int(logits.argmax())

    def accept(self, token_id: int) -> None:
        pass


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Engine:
    monkeypatch.setattr(layer_memory, "WINDOW_STEP", 40)
    backend = CpuBackend()
    with GGUFModel.open(write_gguf(tiny_model("gpt-oss"), tmp_path / "m.gguf", "gpt-oss")) as gguf:
        model = load_model(gguf, backend)
        experts = ResidentExperts(model, ExpertStore(gguf, model.config), backend)
    engine = Engine(model, model.new_cache(200), experts, chunk_tokens=32)
    engine.prefill(OLD)
    return engine


NEAREST = len(OLD) - RING + 5  # the oldest of the 6 positions that its window sees is the oldest in the ring


@pytest.mark.parametrize(("shared", "reused"), [(140, 140), (NEAREST, NEAREST), (NEAREST - 1, 0), (3, 0)])
def test_reuse_ends_where_the_window_is_gone(engine: Engine, shared: int, reused: int) -> None:
    new = OLD[:shared] + prompt(8, seed=5).tolist()
    generation = engine.generate(new, Greedy(), 4)
    ids = [step.token_id for step in generation]
    assert (generation.reused_tokens, generation.repeated_tokens) == (reused, shared - reused)
    fresh = Engine(engine.model, engine.model.new_cache(200), engine.provider, chunk_tokens=32)
    again = fresh.generate(new, Greedy(), 4)
    assert ids == [step.token_id for step in again]
    assert engine.tokens == fresh.tokens


def test_a_conversation_comes_back_to_where_the_turns_meet(engine: Engine) -> None:
    """A reply longer than the ring is left out of the next prompt, as gpt-oss's template leaves its thoughts out."""
    engine.reset()
    first = OLD[:100]
    list(engine.generate(first, Greedy(), 90, keep_at=97))
    new = first[:97] + prompt(8, seed=5).tolist()
    generation = engine.generate(new, Greedy(), 4)
    ids = [step.token_id for step in generation]
    assert (generation.reused_tokens, generation.repeated_tokens) == (97, 0)
    fresh = Engine(engine.model, engine.model.new_cache(200), engine.provider, chunk_tokens=32)
    assert ids == [step.token_id for step in fresh.generate(new, Greedy(), 4)]
