"""The engine on a tiny model: chunked prompts, reuse of the cache, stops, cancelling, and any budget giving the same
bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernels.reference.backend import ReferenceBackend
from models.config import ModelConfig
from models.errors import PearlError, UsageError
from models.expert_store import ExpertStore
from models.gguf import GGUFModel
from models.loader import load_model
from models.resident import ResidentExperts
from pearl_cli.engine import Engine
from pearl_cli.open_engine import open_engine
from pearl_cli.opened_engine import OpenedEngine
from pearl_cli.options import RunOptions
from pearl_cli.predict.next_gate import NextGate
from pearl_cli.residency.call_work import CallCancelled
from pearl_cli.sampling import Sampler, SamplingParams
from pearl_cli.sizes import Size
from tests.tiny_gguf import f32, tiny_moe

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 35, 89]


class Greedy:
    def __init__(self) -> None:
        self.accepted: list[int] = []

    def sample(self, logits: np.ndarray, recent: object) -> int:
        return int(np.argmax(logits))

    def accept(self, token_id: int) -> None:
        self.accepted.append(token_id)


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_moe("qwen3moe", num_layers=3).write(tmp_path_factory.mktemp("model") / "tiny.gguf")


@pytest.fixture
def opened(model_path: Path) -> Iterator[OpenedEngine]:
    with open_engine(model_path, RunOptions(threads=1, ctx_size=64, budget=Size(percent=40), ubatch_size=4)) as opened:
        yield opened


@pytest.fixture(scope="module")
def resident(model_path: Path) -> Iterator[Engine]:
    """The plain provider on the compiled kernels."""
    from kernels.cpu.backend import CpuBackend

    backend = CpuBackend(1)
    with GGUFModel.open(model_path) as gguf:
        model = load_model(gguf, backend)
        provider = ResidentExperts(model, ExpertStore(gguf, ModelConfig.from_gguf(gguf)), backend)
        yield Engine(model, model.new_cache(64), provider, chunk_tokens=4)


@pytest.mark.parametrize("percent", [15, 30, 60, 100])
@pytest.mark.parametrize("evict", ["lru", "lfru", "random"])
def test_streaming_equals_the_resident_model_bit_for_bit(
    model_path: Path, resident: Engine, percent: float, evict: str
) -> None:
    resident.reset()
    options = RunOptions(threads=1, ctx_size=64, budget=Size(percent=percent), ubatch_size=4, evict=evict, io_threads=2)
    with open_engine(model_path, options) as opened:
        np.testing.assert_array_equal(opened.engine.prefill(PROMPT), resident.prefill(PROMPT))
        for token in (7, 8, 200, 7, 31):
            np.testing.assert_array_equal(opened.engine.decode_step(token), resident.decode_step(token))
        assert (opened.controller.totals.misses == 0) == (percent == 100)


def test_a_long_chunk_gives_the_same_bits_in_waves(model_path: Path, resident: Engine) -> None:
    """Fifty tokens at once need all experts; slots for three a layer and two in passing must do."""
    prompt = [(7 * i * i + 3) % 256 for i in range(50)]
    backend_engine = Engine(resident.model, resident.model.new_cache(64), resident.provider, chunk_tokens=50)
    expected = backend_engine.prefill(prompt)
    options = RunOptions(threads=1, ctx_size=64, budget=Size(percent=45), ubatch_size=50, io_threads=2)
    with open_engine(model_path, options) as opened:
        np.testing.assert_array_equal(opened.engine.prefill(prompt), expected)
        totals = opened.controller.totals
        assert totals.hits == 0
        assert sum(opened.plan.slots.capacities) + 2 < totals.misses <= 24  # once an expert, more than there are slots
        np.testing.assert_array_equal(opened.engine.decode_step(9), backend_engine.decode_step(9))


def test_generation_counts_and_reports(opened: OpenedEngine) -> None:
    sampler = Greedy()
    seen: list[tuple[int, int]] = []
    generation = opened.engine.generate(PROMPT, sampler, 5, progress=lambda done, total: seen.append((done, total)))
    steps = list(generation)
    assert [step.token_id for step in steps] == sampler.accepted
    assert len(steps) == 5
    assert generation.finish_reason == "length"
    assert (generation.prompt_tokens, generation.reused_tokens) == (11, 0)
    assert seen == [(done, 11) for done in (1, 2, 4, 5, 6, 8, 9, 10, 11)]  # three chunks through three layers
    assert opened.engine.tokens == PROMPT + sampler.accepted[:4]  # the last token was never computed
    assert steps[0].stats.n_tokens == 0
    assert all(step.stats.n_tokens == 1 and step.stats.hits + step.stats.misses == 6 for step in steps[1:])
    assert generation.prompt_stats.n_tokens == 11


def test_a_stop_id_ends_without_being_given(opened: OpenedEngine) -> None:
    first = [step.token_id for step in opened.engine.generate(PROMPT, Greedy(), 4)]
    generation = opened.engine.generate(PROMPT, Greedy(), 4, stop_ids={first[2]})
    assert [step.token_id for step in generation] == first[: first.index(first[2])]
    assert (generation.finish_reason, generation.stop_id) == ("stop", first[2])


def test_the_common_prefix_is_reused(opened: OpenedEngine) -> None:
    engine = opened.engine
    engine.prefill(PROMPT)
    generation = engine.generate([*PROMPT[:6], 77, 78], Greedy(), 1)
    list(generation)
    assert generation.reused_tokens == 6
    assert generation.prompt_stats.n_tokens == 2
    again = engine.generate([*PROMPT[:6], 77, 78], Greedy(), 1)
    list(again)
    assert again.reused_tokens == 7  # the last token is computed for its logits
    assert engine.tokens == [*PROMPT[:6], 77, 78] == engine.tokens[: engine.cache.length]


def test_the_end_of_the_context_ends_the_generation(opened: OpenedEngine) -> None:
    generation = opened.engine.generate(PROMPT, Greedy())
    steps = list(generation)
    assert generation.finish_reason == "length"
    assert len(PROMPT) + len(steps) == opened.engine.context + 1  # the last one needs no room


def test_prompts_that_cannot_be_computed(opened: OpenedEngine) -> None:
    with pytest.raises(UsageError, match="no token"):
        opened.engine.prefill([])
    with pytest.raises(UsageError, match=r"65 tokens does not fit the context of 64; .* -c \(up to 128\)"):
        opened.engine.prefill([1] * 65)


def test_cancelling_between_layers_keeps_what_was_done(opened: OpenedEngine, resident: Engine) -> None:
    with pytest.raises(CallCancelled):
        opened.engine.prefill(PROMPT, cancelled=lambda: opened.engine.cache.length == 4)  # in the second chunk
    assert opened.engine.tokens == PROMPT[:4]
    assert opened.engine.cache.length == 4
    resident.reset()
    np.testing.assert_array_equal(opened.engine.prefill(PROMPT), resident.prefill(PROMPT))


def test_a_cancelled_generation_says_so(opened: OpenedEngine) -> None:
    pressed = []
    generation = opened.engine.generate(PROMPT, Greedy(), 20, cancelled=lambda: bool(pressed))
    for i, _ in enumerate(generation):
        if i == 2:
            pressed.append(1)
    assert generation.finish_reason == "cancelled"
    assert len(opened.engine.tokens) == opened.engine.cache.length == len(PROMPT) + 2


def test_an_engine_without_residency_has_no_counters(model_path: Path) -> None:
    backend = ReferenceBackend()
    with GGUFModel.open(model_path) as gguf:
        model = load_model(gguf, backend)
        provider = ResidentExperts(model, ExpertStore(gguf, ModelConfig.from_gguf(gguf)), backend)
        steps = list(Engine(model, model.new_cache(32, "f32", "f32"), provider).generate(PROMPT[:3], Greedy(), 2))
    assert [step.stats.hits for step in steps] == [0, 0]


def test_tight_slots_and_scarce_memory_are_said(model_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    options = RunOptions(threads=1, ctx_size=16, budget=Size(percent=15), ram=Size(n_bytes=1 << 34))
    monkeypatch.setattr("pearl_cli.memory_warnings.available_bytes", lambda: 1 << 20)
    with open_engine(model_path, options, notify=said.append):
        pass
    assert "hold less than one of a layer's experts and every token uses 2" in said[0]
    assert "only 1MiB is free" in said[1]


@pytest.mark.parametrize(
    ("layer", "where"),
    [(0, "layer 0 or the attention of layer 1 produced"), (1, "layer 1 or the att"), (2, "the last layer produced")],
)
@pytest.mark.parametrize("routing", ["exact", "psr"])
def test_an_overflow_is_ascribed_to_the_layer_that_it_came_from(
    layer: int, where: str, routing: str, tmp_path: Path
) -> None:
    """The down projections of one layer are infinite, as bf16 weights beyond f16's range once were."""
    tiny = tiny_moe("qwen3moe", num_layers=3)
    poisoned = f"blk.{layer}.ffn_down_exps.weight"
    huge = f32(poisoned, tiny.weights[poisoned] * np.float32("inf"))
    tiny.tensors = [huge if tensor.name == poisoned else tensor for tensor in tiny.tensors]
    options = RunOptions(threads=1, ctx_size=64, routing=routing)
    with np.errstate(all="ignore"), open_engine(tiny.write(tmp_path / "t.gguf"), options) as opened:
        sampler = Sampler(SamplingParams(temperature=0), opened.config.vocab_size)
        with pytest.raises(PearlError, match=where):
            list(opened.engine.generate(PROMPT, sampler, 1, frozenset()))


@pytest.mark.parametrize(("percent", "asked"), [(100, False), (50, True)])
def test_nobody_is_asked_what_to_fetch_where_everything_is_there(
    percent: int, asked: bool, model_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layers: list[int] = []
    plain = NextGate.forecast

    def forecast(self: NextGate, layer: int, *rest: Any) -> Any:
        layers.append(layer)
        return plain(self, layer, *rest)

    monkeypatch.setattr(NextGate, "forecast", forecast)
    options = RunOptions(threads=1, ctx_size=64, budget=Size(percent=percent), predictor="next-gate")
    with open_engine(model_path, options) as opened:
        opened.engine.prefill(PROMPT)
        opened.engine.decode_step(4)
    assert bool(layers) == asked
