"""A controller that streams random experts to an emulated device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from kernels.gpu.device_calls import DeviceCalls
from kernels.reference.backend import ReferenceBackend
from models.gguf_files import MemoryFiles
from pearl_cli.device.build import CpuForMisses, build_device_controller
from pearl_cli.device.device_side import DeviceSide
from pearl_cli.device.host_slots import HostPlan
from pearl_cli.device.miss_rule import MissRule
from pearl_cli.device.store_in_place import lock_store
from pearl_cli.predict.base import Predictor
from pearl_cli.residency.ablations import CopyPieces
from pearl_cli.residency.build import ExpertPlaces
from pearl_cli.residency.controller import ResidencyController
from pearl_cli.residency.eviction import make_policy
from pearl_cli.residency.slot_plan import floor_bytes, full_bytes, plan_slots
from pearl_cli.routing.exact import ExactRouting
from tests.fake_experts import HIDDEN, WIDTH, FakeStore, read_file

K = 2


@contextmanager
def device_controller(
    store: FakeStore,
    calls: DeviceCalls,
    vram: float,
    ram: float = 1.0,
    policy: str = "lru",
    predictor: Predictor | None = None,
    io_threads: int = 1,
    read: Callable[[int, int, memoryview, int], None] | None = None,
    lock_limit_bytes: int = 1 << 40,
    notify: Callable[[str], None] | None = None,
    prefetch_slots: int = 0,
    miss: MissRule | None = None,
    pieces: CopyPieces | None = None,
    in_ram: MemoryFiles | None = None,
) -> Iterator[ResidencyController]:
    """vram, ram: 0 is the floor, 1 everything. With `miss`, the reference stands in for the CPU too. in_ram: the
    file of `store`, which may be locked where it is.
    """
    backend = ReferenceBackend()
    places = ExpertPlaces.of(store)
    low, high = floor_bytes(places.slot_bytes), full_bytes(places.slot_bytes, store.num_experts)
    plan = plan_slots(places.slot_bytes, store.num_experts, round(low + vram * (high - low)), prefetch_slots)
    host = plan_slots(places.slot_bytes, store.num_experts, round(low + ram * (high - low)))
    side = DeviceSide.open(calls, plan, store.num_layers, store.num_experts)
    host_plan = HostPlan(host.classes, host.class_of_layer, lock_limit_bytes)
    host_plan = lock_store(
        calls, in_ram, lock_limit_bytes, host_plan, places.slot_bytes, store.num_experts, notify
    )
    popularity = np.arange(store.num_layers * store.num_experts).reshape(store.num_layers, -1)
    controller = build_device_controller(
        side, places, plan, host_plan, (HIDDEN, WIDTH),
        store.routers(K), backend, make_policy(policy, popularity), ExactRouting(backend),
        read or read_file(store.path), io_threads, predictor, 2, notify,
        on_cpu=CpuForMisses(ReferenceBackend(), miss) if miss is not None else None, pieces=pieces,
    )  # fmt: skip
    try:
        yield controller
    finally:
        controller.close()
