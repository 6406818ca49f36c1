"""The control: a layer's router on its own input is right every time. One layer on, it forecasts that layer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from kernels.backend import Activations, Array
from models.expert_provider import Routing
from pearl_cli.open_engine import open_engine
from pearl_cli.opened_engine import OpenedEngine
from pearl_cli.options import RunOptions
from pearl_cli.predict.base import Forecast
from pearl_cli.predict.next_gate import NextGate
from tests.tiny_gguf import tiny_moe

K = 2


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[OpenedEngine]:
    path = tiny_moe("qwen3moe", num_layers=3, num_experts_per_tok=K).write(tmp_path / "tiny.gguf")
    with open_engine(path, RunOptions(threads=1, ctx_size=64)) as opened:
        yield opened


class Watching:
    """An expert provider that asks a predictor at every layer of decoded tokens and keeps what came of it."""

    def __init__(self, opened: OpenedEngine, predictor: NextGate) -> None:
        self.inner = opened.controller
        self.predictor = predictor
        self.decoding = False
        self.seen: list[tuple[int, list[Forecast], np.ndarray]] = []

    def begin(self, token_ids: np.ndarray, start: int, phase: str) -> None:
        self.decoding = phase == "decode"
        self.predictor.begin(token_ids, start, phase)
        self.inner.begin(token_ids, start, phase)

    def select(self, layer: int, residual: Array, a: Activations, router_logits: Array) -> Routing:
        routing = self.inner.select(layer, residual, a, router_logits)
        if self.decoding:
            found = list(self.predictor.forecast(layer, residual, a, routing))
            self.seen.append((layer, found, routing.topk_ids[-1].copy()))
        return routing

    def compute(self, layer: int, a: Activations, routing: Routing) -> Array:
        return self.inner.compute(layer, a, routing)

    def end(self) -> None:
        self.inner.end()


def run(opened: OpenedEngine, stride: int) -> list[tuple[int, list[Forecast], np.ndarray]]:
    watching = Watching(opened, NextGate(opened.engine.model.routers, opened.backend, stride))
    opened.engine.provider = watching
    opened.engine.prefill([3, 1, 4])
    for token in range(40, 60):
        opened.engine.decode_step(token)
    return watching.seen


def test_a_router_on_its_own_input_is_always_right(opened: OpenedEngine) -> None:
    seen = run(opened, stride=0)
    assert len(seen) == 60
    for layer, found, chosen in seen:
        assert found[0].layer == layer
        assert set(np.argsort(-found[0].scores, kind="stable")[:K]) == set(chosen)


def test_one_layer_on_it_forecasts_the_next_layer_and_nothing_after_the_last(opened: OpenedEngine) -> None:
    seen = run(opened, stride=1)
    assert [[f.layer for f in found] for _, found, _ in seen[:3]] == [[1], [2], []]
    assert all(f.scores.min() >= 0.0 and f.scores.max() <= 1.0 for _, found, _ in seen for f in found)
