"""A real SIGINT while the computing thread waits for an expert: KeyboardInterrupt comes at once, the next call is
right.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from kernels.backend import Activations
from kernels.reference.backend import ReferenceBackend
from models.expert_provider import Routing
from pearl_cli.residency.build import ExpertPlaces, build_controller
from pearl_cli.residency.call_work import CallCancelled
from pearl_cli.residency.eviction import make_policy
from pearl_cli.residency.slot_plan import floor_bytes, plan_slots
from pearl_cli.routing.exact import ExactRouting
from tests.fake_experts import HIDDEN, WIDTH, FakeStore, GatedReads, read_file


def test_sigint_during_a_read(tmp_path: Path) -> None:
    store = FakeStore(tmp_path / "experts", num_layers=1)
    places, backend = ExpertPlaces.of(store), ReferenceBackend()
    plan = plan_slots(places.slot_bytes, 8, floor_bytes(places.slot_bytes) + 3 * max(places.slot_bytes))
    gated = GatedReads(read_file(store.path))
    controller = build_controller(
        places, plan, (HIDDEN, WIDTH), store.routers(2), backend, make_policy("lru"), ExactRouting(backend), gated
    )
    x = np.random.default_rng(0).standard_normal((3, HIDDEN)).astype(np.float32)
    routing = Routing(np.array([[0, 1], [2, 3], [4, 5]], np.int32), np.ones((3, 2), np.float32))

    def press() -> None:
        gated.began.acquire()  # a read has begun, and will not end by itself
        while not controller.queue._taker_waits:
            time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=press)
    thread.start()
    controller.begin(np.zeros(3, np.int64), 0, "prefill")
    with pytest.raises(KeyboardInterrupt):
        controller.compute(0, Activations(x), routing)
    thread.join()
    gated.allow(1000)
    controller.end()
    controller.begin(np.zeros(3, np.int64), 0, "prefill")  # waits for the read in flight
    assert controller.queue.idle()
    np.testing.assert_array_equal(controller.compute(0, Activations(x), routing), store.expected(0, x, routing))
    controller.end()
    controller.close()


def test_cancelling_does_not_wait_for_the_disk(tmp_path: Path) -> None:
    """A read that never ends does not keep the reply from ending; only the next call has to wait for it."""
    store = FakeStore(tmp_path / "experts", num_layers=1)
    places, backend = ExpertPlaces.of(store), ReferenceBackend()
    plan = plan_slots(places.slot_bytes, 8, floor_bytes(places.slot_bytes))
    gated = GatedReads(read_file(store.path))
    controller = build_controller(
        places, plan, (HIDDEN, WIDTH), store.routers(2), backend, make_policy("lru"), ExactRouting(backend), gated
    )
    x = np.random.default_rng(0).standard_normal((1, HIDDEN)).astype(np.float32)
    routing = Routing(np.array([[3, 1]], np.int32), np.ones((1, 2), np.float32))
    controller.begin(np.zeros(1, np.int64), 0, "decode")
    controller.cancelled = lambda: len(gated.started) > 0
    with pytest.raises(CallCancelled):
        controller.compute(0, Activations(x), routing)
    controller.end()
    assert len(gated.started) == 1
    assert not controller.queue.idle()
    controller.cancelled = None
    gated.allow(1000)
    controller.begin(np.zeros(1, np.int64), 0, "decode")
    np.testing.assert_array_equal(controller.compute(0, Activations(x), routing), store.expected(0, x, routing))
    controller.end()
    controller.close()
