"""A decoded token allocates no array as large as a row of the residual stream: ops, sampling and residency use memory
that is there.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import models.demo
from kernels.cpu import recycled
from pearl_cli.open_engine import OpenedEngine, open_engine
from pearl_cli.options import RunOptions
from pearl_cli.sampling import Sampler, SamplingParams
from pearl_cli.sizes import Size
from tests.allocations import Buffer, numpy_buffers
from tests.tiny_models import FAMILIES, prompt, tiny_model, write_gguf

WARM, MEASURED = 12, 4
DEMO = Path(next(iter(models.demo.__path__))) / "pearl-demo-Q8_0-00001-of-00002.gguf"
GREEDY = SamplingParams(temperature=0.0)
SAMPLED = SamplingParams(temperature=0.8, seed=3)
PENALISED = SamplingParams(temperature=0.8, seed=3, repeat_penalty=1.1, logit_bias=((7, -1.0),))


def buffers_of_tokens(opened: OpenedEngine, params: SamplingParams) -> list[list[Buffer]]:
    """What each of the last MEASURED tokens asked for, from sampling to logits."""
    engine, sampler = opened.engine, Sampler(params, opened.config.vocab_size)
    logits, seen = engine.prefill(prompt(13).tolist()), []
    for _ in range(WARM + MEASURED):
        with numpy_buffers() as buffers:
            token = sampler.sample(logits, engine.tokens)
            sampler.accept(token)
            logits = engine.decode_step(token)
        seen.append(buffers)
    return seen[WARM:]


def large(opened: OpenedEngine, tokens: list[list[Buffer]]) -> list[str]:
    row_bytes = 4 * opened.config.hidden_size
    found = [buffer for buffers in tokens for buffer in buffers if buffer.n_bytes >= row_bytes]
    return [f"{buffer.n_bytes} bytes at {buffer.place}" for buffer in found]


@pytest.mark.parametrize("name", ["greedy", "sampled", "penalised"])
@pytest.mark.parametrize(("percent", "evict"), [(100, "auto"), (40, "lru"), (40, "auto")])
def test_the_demo_model_allocates_nothing_large(percent: float, evict: str, name: str) -> None:
    options = RunOptions(threads=2, ctx_size=512, budget=Size(percent=percent), evict=evict, no_profile=True)
    with open_engine(DEMO, options) as opened:
        tokens = buffers_of_tokens(opened, {"greedy": GREEDY, "sampled": SAMPLED, "penalised": PENALISED}[name])
        assert large(opened, tokens) == []
        assert (opened.controller.totals.misses == 0) == (percent == 100)
        assert all(tokens), "nothing was recorded"
    if percent == 100:
        assert max(sum(buffer.n_bytes for buffer in buffers) for buffers in tokens) < 8192


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("percent", [100, 40])
def test_every_architecture_allocates_nothing_large(family: str, percent: float, tmp_path: Path) -> None:
    path = write_gguf(tiny_model(family), tmp_path / "model.gguf", family)
    options = RunOptions(threads=1, ctx_size=64, budget=Size(percent=percent), no_profile=True)
    with open_engine(path, options) as opened:
        assert large(opened, buffers_of_tokens(opened, GREEDY)) == []


def test_without_recycling_they_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recycled, "KEPT", 0)
    recycled.FLOATS.clear()
    options = RunOptions(threads=1, ctx_size=64, budget=Size(percent=100), no_profile=True)
    with open_engine(DEMO, options) as opened:
        seen = large(opened, buffers_of_tokens(opened, SAMPLED))
        assert len(seen) > 4 * MEASURED * opened.config.num_layers
        assert any("kernels/cpu/linear.py" in line for line in seen)
    recycled.FLOATS.clear()
