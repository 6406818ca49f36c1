"""Copies in flight, their delays, threads, slots: nothing of it changes a bit of what cache-aware routing computes, and
the control that goes by the physical slots shows that the test can see it.
"""

from __future__ import annotations

import random
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pearl_cli.open_engine import open_engine
from pearl_cli.opened_engine import OpenedEngine
from pearl_cli.options import RunOptions
from pearl_cli.residency.disk_reader import DiskReader
from pearl_cli.residency.eviction import make_policy
from pearl_cli.routing.choose import make_routing
from pearl_cli.sizes import Size
from tests.tiny_gguf import tiny_moe
from tests.tiny_models import tiny_model, write_gguf

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]
FORCED = [int(i) for i in np.random.default_rng(1).integers(2, 90, 40)]
PSR = RunOptions(
    threads=1, ctx_size=64, routing="psr", lambda_="0.3", inserts=2, residency=Size(percent=50), evict="lru",
    budget=Size(percent=70), ubatch_size=4,
)  # fmt: skip


@pytest.fixture(scope="module")
def softmax_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_moe("qwen3moe", num_layers=3).write(tmp_path_factory.mktemp("model") / "tiny.gguf")


@pytest.fixture(scope="module")
def grouped_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sigmoid scores with a selection bias, three groups, a dense first layer."""
    return write_gguf(tiny_model("deepseek2_v3"), tmp_path_factory.mktemp("grouped") / "tiny.gguf", "deepseek2_v3")


class SlowReads:
    """Every read waits a random time of up to `longest_s`, another sequence for each seed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, longest_s: float, seed: int) -> None:
        self._random, self._lock = random.Random(seed), threading.Lock()
        plain = DiskReader.read

        def read(reader: DiskReader, file_index: int, offset: int, out: memoryview, needed_bytes: int) -> None:
            with self._lock:
                wait = self._random.random() * longest_s
            time.sleep(wait)
            plain(reader, file_index, offset, out, needed_bytes)

        monkeypatch.setattr(DiskReader, "read", read)


def run(opened: OpenedEngine) -> tuple[list[np.ndarray], list[int], tuple[int, ...]]:
    """(logits of every decoded token, greedy ids, routing counts)."""
    rows = [opened.engine.prefill(PROMPT)]
    rows += [opened.engine.decode_step(token) for token in FORCED]
    rows = [row.copy() for row in rows]
    return rows, [int(row.argmax()) for row in rows], opened.policy.counts.values()  # type: ignore[attr-defined]


def run_with(path: Path, options: RunOptions, copies: int | None = None) -> tuple[list[np.ndarray], list[int], object]:
    with open_engine(path, options) as opened:
        opened.controller._slots.max_ahead = copies
        return run(opened)


def assert_same(first: tuple[object, ...], second: tuple[object, ...]) -> None:
    np.testing.assert_array_equal(first[0], second[0])
    assert first[1:] == second[1:]


@pytest.mark.parametrize("evict", ["lru", "pearl", "lfru"])
@pytest.mark.parametrize("model", ["softmax_model", "grouped_model"])
def test_no_schedule_of_copies_changes_a_bit(
    model: str, evict: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, options = request.getfixturevalue(model), replace(PSR, evict=evict)
    resident = run_with(path, replace(options, budget=Size(percent=100)))
    assert resident[2][2] > 0  # type: ignore[index]
    assert resident[2][3] < resident[2][0]  # type: ignore[index]
    for copies in (0, 1, 2, 4, None):
        assert_same(run_with(path, options, copies), resident)
    SlowReads(monkeypatch, 0.002, seed=5)
    for copies, io_threads in ((None, 1), (4, 4), (1, 2)):
        assert_same(run_with(path, replace(options, io_threads=io_threads), copies), resident)
    assert_same(run_with(path, replace(options, threads=2, budget=Size(percent=55), io_threads=3)), resident)


def test_a_cache_that_is_also_the_slots_record_gives_the_same_bits(softmax_model: Path) -> None:
    """Without --residency slots and logical cache are one object; all resident they are two."""
    options = replace(PSR, residency=None, budget=Size(percent=60))
    with open_engine(softmax_model, options) as opened:
        settings, capacities = opened.routing, opened.plan.slots.capacities
        assert all(state is not None and state.cache.logical for state in opened.controller.layers)
        streamed = run(opened)
        assert opened.controller.totals.misses > 0
        assert opened.controller.totals.useful_prefetch_bytes > 0
    everything = RunOptions(threads=1, ctx_size=64, budget=Size(percent=100), ubatch_size=4)
    with open_engine(softmax_model, everything) as opened:
        routers, backend = opened.engine.model.routers, opened.backend
        policy = make_routing(settings, routers, backend, capacities, lambda: make_policy("lru"), None)
        opened.route_by(settings, policy)
        assert_same(run(opened), streamed)
        assert opened.controller.totals.misses == 0


def test_physical_slots_as_the_cache_do_change_the_output(
    softmax_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = replace(PSR, routing="cache-prior-physical", residency=None, lambda_="0.6", budget=Size(percent=60))
    runs = [run_with(softmax_model, options, copies) for copies in (0, 4, None)]
    SlowReads(monkeypatch, 0.01, seed=6)
    runs += [run_with(softmax_model, options, copies) for copies in (0, 4, None)]
    assert any(not np.array_equal(each[0], runs[0][0]) for each in runs[1:])


def test_an_interrupted_token_leaves_no_trace(softmax_model: Path) -> None:
    """Cancelled in its second layer, then decoded again: as if nothing had been."""
    from pearl_cli.residency.call_work import CallCancelled

    with open_engine(softmax_model, PSR) as opened:
        expected = run(opened)
    with open_engine(softmax_model, PSR) as opened:
        rows = [opened.engine.prefill(PROMPT).copy()]
        for index, token in enumerate(FORCED):
            if index % 7 == 3:
                asked = iter([False, True, True])
                with pytest.raises(CallCancelled):
                    opened.engine.decode_step(token, cancelled=lambda asked=asked: next(asked, True))
            rows.append(opened.engine.decode_step(token).copy())
    np.testing.assert_array_equal(rows, expected[0])


def test_back_to_exact_routing(softmax_model: Path) -> None:
    """Changing the policy in the middle keeps slots and results right."""
    plain = RunOptions(threads=1, ctx_size=64, budget=Size(percent=60), ubatch_size=4)
    with open_engine(softmax_model, plain) as opened:
        exact = [opened.engine.prefill(PROMPT).copy(), *(opened.engine.decode_step(t).copy() for t in FORCED[:5])]
    with open_engine(softmax_model, replace(PSR, residency=None, budget=Size(percent=60))) as opened:
        run(opened)
        settings = replace(opened.routing, name="exact", lambda_=0.0, inserts=0)
        opened.route_by(settings, opened.routing_for(settings))
        assert opened.policy.exact
        opened.engine.reset()
        again = [opened.engine.prefill(PROMPT).copy(), *(opened.engine.decode_step(t).copy() for t in FORCED[:5])]
        np.testing.assert_array_equal(again, exact)
        for state in opened.controller.layers:
            assert state is not None
            np.testing.assert_array_equal(state.slot_of >= 0, state.cache.resident)
