"""The engine's own counters equal a replay of the routing it went through: the simulator tells the truth about the
engine.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kernels.backend import Activations
from kernels.reference.backend import ReferenceBackend
from models.expert_provider import Routing
from pearl_cli.residency.build import ExpertPlaces, build_controller
from pearl_cli.residency.eviction import make_policy
from pearl_cli.residency.slot_plan import full_bytes, plan_slots
from pearl_cli.routing.exact import ExactRouting
from pearl_cli.simulate.engine_rules import replay_engine
from pearl_cli.trace import TraceWriter, read_trace
from tests.fake_experts import HIDDEN, WIDTH, DelayedReads, FakeStore, read_file

NUM_LAYERS, NUM_EXPERTS, K = 3, 8, 2
PROMPT, DECODED = 12, 40
EXPERT_BYTES = 3 * 4 * HIDDEN * WIDTH


def routed_ids(seed: int = 0) -> np.ndarray:
    """[tokens, layers, K], some experts hotter than others."""
    rng = np.random.default_rng(seed)
    heat = np.arange(1, NUM_EXPERTS + 1) / np.arange(1, NUM_EXPERTS + 1).sum()
    tokens = range(PROMPT + DECODED)
    return np.array(
        [[rng.choice(NUM_EXPERTS, K, replace=False, p=heat) for _ in range(NUM_LAYERS)] for _ in tokens], np.int32
    )


@pytest.mark.parametrize("policy", ["lru", "lfu", "lfru", "random"])
@pytest.mark.parametrize("share", [0.3, 0.6])
def test_hits_and_bytes_while_decoding(tmp_path: Path, policy: str, share: float) -> None:
    ids = routed_ids()
    store = FakeStore(tmp_path / "experts", num_layers=NUM_LAYERS, num_experts=NUM_EXPERTS)
    places, backend = ExpertPlaces.of(store), ReferenceBackend()
    plan = plan_slots(places.slot_bytes, NUM_EXPERTS, int(share * full_bytes(places.slot_bytes, NUM_EXPERTS)))
    controller = build_controller(
        places, plan, (HIDDEN, WIDTH), store.routers(K), backend, make_policy(policy, seed=1), ExactRouting(backend),
        DelayedReads(read_file(store.path), seed=2, longest_s=0.0005), io_threads=2,
    )  # fmt: skip

    def forward(rows: np.ndarray, phase: str) -> None:
        controller.begin(np.zeros(len(rows), np.int64), 0, phase)
        for layer in range(NUM_LAYERS):
            routing = Routing(np.ascontiguousarray(rows[:, layer]), np.ones((len(rows), K), np.float32))
            controller.compute(layer, Activations(np.ones((len(rows), HIDDEN), np.float32)), routing)
        controller.end()

    forward(ids[:PROMPT], "prefill")
    before = controller.totals
    for row in ids[PROMPT:]:
        forward(row[None], "decode")
    decoded = controller.totals - before
    controller.close()

    path = tmp_path / "trace.csv"
    with path.open("w") as out:
        writer = TraceWriter(out, "fake", "olmoe", NUM_EXPERTS, K, [EXPERT_BYTES] * NUM_LAYERS, [0] * NUM_LAYERS)
        for step, token in enumerate(ids):
            for layer in range(NUM_LAYERS):
                writer.write(0, int(step >= PROMPT), step, layer, token[layer], np.ones(K, np.float32))
    if policy == "random":  # one generator serves all layers, so the order of events decides: not replayable by layer
        assert decoded.hits + decoded.misses == DECODED * NUM_LAYERS * K
        return
    replay = replay_engine(read_trace(path), list(plan.capacities), make_policy(policy))
    assert decoded.hits / (decoded.hits + decoded.misses) == replay.hit_rate_decode
    assert decoded.miss_bytes == decoded.misses * EXPERT_BYTES
    assert 0 < decoded.misses < DECODED * NUM_LAYERS * K
