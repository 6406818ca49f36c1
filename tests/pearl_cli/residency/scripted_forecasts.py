"""Runs whose routing and forecasts follow a table, over experts small enough to compute by hand."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from kernels.reference.backend import ReferenceBackend
from models.expert_provider import Routing
from pearl_cli.predict.base import Forecast
from pearl_cli.residency.build import ExpertPlaces, build_controller
from pearl_cli.residency.controller import ResidencyController
from pearl_cli.residency.eviction import make_policy
from pearl_cli.residency.slot_plan import plan_slots
from pearl_cli.routing.exact import ExactRouting
from tests.fake_experts import HIDDEN, WIDTH, FakeStore, read_file

K = 2


class Scripted:
    """Forecasts what a function of (token, layer) says, for the next layer; routing is scripted by the same table."""

    name = "scripted"

    def __init__(self, plan: np.ndarray, guess: Callable[[int, int], Sequence[int]]) -> None:
        self.plan = plan  # [tokens, layers, K]
        self.guess = guess
        self.token = -1

    def begin(self, token_ids: np.ndarray, start: int, phase: str) -> None:
        self.token = start

    def forecast(self, layer: int, residual: object, a: object, routing: Routing) -> list[Forecast]:
        token, target = (self.token, layer + 1) if layer + 1 < self.plan.shape[1] else (self.token + 1, 0)
        if token >= len(self.plan):
            return []
        scores = np.zeros(8, np.float32)
        scores[list(self.guess(token, target))] = 0.9
        return [Forecast(target, scores)]

    def next_use(self, layer: int) -> None:
        return None


@contextmanager
def scripted_run(
    tmp_path: Path,
    guess: Callable[[int, int], Sequence[int]] | None,
    plan: np.ndarray,
    read: Callable[[int, int, memoryview, int], None] | None = None,
    io_threads: int = 1,
    slots: int = 3 * 2 + 6,
) -> Iterator[tuple[ResidencyController, FakeStore, Callable[[], None]]]:
    store = FakeStore(tmp_path / "experts", num_layers=plan.shape[1], layout="shards")
    places, backend = ExpertPlaces.of(store), ReferenceBackend()
    slot_plan = plan_slots(places.slot_bytes, 8, slots * max(places.slot_bytes), prefetch_slots=4)
    predictor = Scripted(plan, guess) if guess is not None else None
    controller = build_controller(
        places, slot_plan, (HIDDEN, WIDTH), store.routers(K), backend, make_policy("lru"), ExactRouting(backend),
        read or read_file(store.path), io_threads, predictor=predictor, prefetch_depth=3,
    )  # fmt: skip

    def run() -> None:
        rng = np.random.default_rng(0)
        for token in range(len(plan)):
            controller.begin(np.zeros(1, np.int64), token, "decode")
            for layer in range(plan.shape[1]):
                logits = np.full((1, 8), -9.0, np.float32)
                logits[0, plan[token, layer]] = [2.0, 1.0]
                x = rng.standard_normal((1, HIDDEN)).astype(np.float32)
                a = backend.activations(x)
                routing = controller.select(layer, x, a, logits)
                assert routing.topk_ids[0].tolist() == plan[token, layer].tolist()
                if settle := getattr(read, "settle", None):
                    settle()
                np.testing.assert_array_equal(controller.compute(layer, a, routing), store.expected(layer, x, routing))
                if settle is not None:  # where the layer missed something, forecasts were asked for meanwhile
                    settle()
            controller.end()

    try:
        yield controller, store, run
    finally:
        controller.close()


def random_plan(tokens: int, layers: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.array([[rng.choice(8, K, replace=False) for _ in range(layers)] for _ in range(tokens)], np.int64)


class Patient:
    """Reads, and a way to wait until every queued read has landed: forecasts then always arrive in time."""

    def __init__(self, path: Path) -> None:
        self._read = read_file(path)
        self.controller: ResidencyController | None = None

    def __call__(self, *args: object) -> None:
        self._read(*args)  # type: ignore[arg-type]

    def settle(self) -> None:
        assert self.controller is not None
        while not self.controller.queue.idle():
            time.sleep(0)
