"""Emptying all slots: the next use of each expert is a miss again, history stays."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from kernels.backend import Activations
from kernels.reference.backend import ReferenceBackend
from models.expert_provider import Routing
from pearl_cli.residency.build import ExpertPlaces, build_controller
from pearl_cli.residency.eviction import make_policy
from pearl_cli.residency.slot_plan import plan_slots
from pearl_cli.routing.exact import ExactRouting
from tests.fake_experts import HIDDEN, WIDTH, FakeStore, read_file


def test_empty_slots_miss_again(tmp_path: Path) -> None:
    store = FakeStore(tmp_path / "experts", num_layers=1)
    places, backend = ExpertPlaces.of(store), ReferenceBackend()
    plan = plan_slots(places.slot_bytes, 8, 8 * max(places.slot_bytes))
    controller = build_controller(
        places, plan, (HIDDEN, WIDTH), store.routers(2), backend, make_policy("lfu"), ExactRouting(backend),
        read_file(store.path),
    )  # fmt: skip
    controller.load_experts(places.in_file_order())
    routing = Routing(np.array([[1, 2]], np.int32), np.ones((1, 2), np.float32))
    for drop, misses in ((False, 0), (True, 2), (False, 0)):
        if drop:
            controller.drop_residents()
        controller.begin(np.zeros(1, np.int64), 0, "decode")
        controller.compute(0, Activations(np.ones((1, HIDDEN), np.float32)), routing)
        controller.end()
        assert controller.last_call.misses == misses
    state = controller.layers[0]
    assert state is not None
    assert state.cache.history.use_count.tolist() == [0, 3, 3, 0, 0, 0, 0, 0]
    assert controller.arena.num_free(0) == controller.arena.num_slots - 2
    controller.close()
