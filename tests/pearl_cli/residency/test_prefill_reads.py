"""What a prompt reads and what it leaves, on the real engine under a budget: each missing expert once a layer and
chunk, in order, and no resident moved or given up without need.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pearl_cli.open_engine import OpenedEngine, open_engine
from pearl_cli.options import RunOptions
from pearl_cli.sizes import Size
from tests.tiny_gguf import tiny_moe

NUM_LAYERS, NUM_EXPERTS = 3, 16
PROMPT = [(7 * i * i + 3 * i + 1) % 256 for i in range(60)]


@dataclass
class LayerCall:
    """One layer of one chunk. used, before, after: expert ids; read: in the order of their demands; slots: of the
    residents before and after.
    """

    layer: int
    used: set[int]
    before: dict[int, int]
    read: list[int] = field(default_factory=list)
    after: dict[int, int] = field(default_factory=dict)


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tiny_moe("qwen3moe", num_layers=NUM_LAYERS, num_experts=NUM_EXPERTS)
    return made.write(tmp_path_factory.mktemp("model") / "tiny.gguf")


@contextmanager
def opened_with(path: Path, percent: float, ubatch_size: int, evict: str = "lru") -> Iterator[OpenedEngine]:
    options = RunOptions(
        threads=1, ctx_size=128, budget=Size(percent=percent), ubatch_size=ubatch_size, evict=evict, io_threads=1,
        no_profile=True,
    )  # fmt: skip
    with open_engine(path, options) as opened:
        yield opened


def slots(opened: OpenedEngine, layer: int) -> dict[int, int]:
    state = opened.controller.layers[layer]
    assert state is not None
    return {int(expert): int(state.slot_of[expert]) for expert in np.flatnonzero(state.slot_of >= 0)}


def watched(opened: OpenedEngine, monkeypatch: pytest.MonkeyPatch) -> list[LayerCall]:
    """A list that the calls of each layer are added to."""
    controller, calls = opened.controller, list[LayerCall]()
    select, compute, demand = controller.select, controller.compute, controller.queue.demand
    before: dict[int, int] = {}
    asked: list[Any] = []

    def watch_demand(loads: Any) -> None:
        asked.extend(loads)
        demand(loads)

    def watch_select(layer: int, *arguments: Any) -> Any:
        before.clear()
        before.update(slots(opened, layer))
        asked.clear()
        routing = select(layer, *arguments)
        calls.append(LayerCall(layer, set(routing.topk_ids.ravel().tolist()), dict(before)))
        return routing

    def watch_compute(layer: int, *arguments: Any) -> Any:
        out = compute(layer, *arguments)
        assert all(load.layer == layer for load in asked)
        calls[-1].read = [load.expert for load in asked]
        calls[-1].after = slots(opened, layer)
        return out

    monkeypatch.setattr(controller.queue, "demand", watch_demand)
    monkeypatch.setattr(controller, "select", watch_select)
    monkeypatch.setattr(controller, "compute", watch_compute)
    return calls


@pytest.mark.parametrize("evict", ["lru", "lfru"])
@pytest.mark.parametrize(("percent", "ubatch_size"), [(45, 60), (45, 12), (20, 12), (80, 7)])
def test_each_missing_expert_is_read_once_a_layer_and_chunk_in_order(
    model_path: Path, monkeypatch: pytest.MonkeyPatch, percent: float, ubatch_size: int, evict: str
) -> None:
    with opened_with(model_path, percent, ubatch_size, evict) as opened:
        calls = watched(opened, monkeypatch)
        opened.engine.prefill(PROMPT)
        n_chunks = -(-len(PROMPT) // ubatch_size)
        assert [call.layer for call in calls] == list(range(NUM_LAYERS)) * n_chunks
        for call in calls:
            assert sorted(call.read) == sorted(call.used - set(call.before))
            passing = [expert for expert in call.read if expert not in call.after]
            staying = [expert for expert in call.read if expert in call.after]
            assert call.read == sorted(passing) + sorted(staying)  # in the file's order, first those that leave again
        n_read = sum(len(call.read) for call in calls)
        stats, state = opened.controller.queue.stats, opened.controller.layers[0]
        assert state is not None
        assert stats.demand_bytes == n_read * state.expert_bytes[0]
        assert stats.prefetch_bytes == 0
        if percent < 80:  # more than the budget holds has gone through
            assert any(len(call.read) > state.cache.capacity for call in calls)


@pytest.mark.parametrize("percent", [20, 45, 80])
def test_a_prompt_gives_up_no_more_residents_than_it_brings_in(
    model_path: Path, monkeypatch: pytest.MonkeyPatch, percent: float
) -> None:
    """Residents that stay keep their slots, experts that pass through take nobody's, and what stays in the end is what
    decoding the same tokens one by one would have kept.
    """
    with opened_with(model_path, percent, 20) as opened:
        engine = opened.engine
        engine.prefill(PROMPT[:5])
        for token in PROMPT[5:12]:
            engine.decode_step(token)
        calls = watched(opened, monkeypatch)
        engine.prefill(PROMPT)
        monkeypatch.undo()
        for call in calls:
            capacity = opened.plan.slots.capacities[call.layer]
            brought = set(call.after) - set(call.before)
            given_up = set(call.before) - set(call.after)
            assert len(given_up) == max(0, len(call.before) + len(brought) - capacity)
            assert brought <= set(call.read)
            assert all(call.after[expert] == slot for expert, slot in call.before.items() if expert in call.after)
        in_chunks = [set(slots(opened, layer)) for layer in range(NUM_LAYERS)]
    with opened_with(model_path, percent, 1) as opened:
        opened.engine.prefill(PROMPT)
        assert [set(slots(opened, layer)) for layer in range(NUM_LAYERS)] == in_chunks


def test_a_longer_chunk_reads_less(model_path: Path) -> None:
    read = []
    for ubatch_size in (10, 20, 60):
        with opened_with(model_path, 30, ubatch_size) as opened:
            opened.engine.prefill(PROMPT)
            read.append(opened.controller.queue.stats.demand_bytes)
    assert read[0] > 1.25 * read[1] > 1.5 * read[2]
