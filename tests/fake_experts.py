"""Experts without a model: a file of random expert matrices, the store over it, and the answer with everything in
memory.

Also the reads that tests put between queue and disk (delayed, failing, gated), and calls whose results are compared.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from kernels.backend import Activations, ExpertTable
from kernels.grouping import group_by_expert
from kernels.quant_types import QuantType
from kernels.reference.backend import ReferenceBackend
from kernels.router_spec import RouterSpec
from models.expert_provider import RouterWeights, Routing
from pearl_cli.residency.controller import ResidencyController

HIDDEN, WIDTH = 64, 32


@dataclass(frozen=True)
class FakeChunk:
    file_index: int
    offset: int
    n_bytes: int
    quant_type: QuantType


@dataclass
class FakeStore:
    """`layout` "stacked": all gates, then ups, then downs of a layer, aligned to 32 bytes, as stock files have them;
    "shards": the three of an expert side by side, aligned to 4096."""

    path: Path
    num_layers: int = 3
    num_experts: int = 8
    layout: str = "stacked"
    dense_layers: tuple[int, ...] = ()
    seed: int = 0
    matrices: dict[tuple[int, int, int], np.ndarray] = field(default_factory=dict)
    chunks: dict[tuple[int, int, int], FakeChunk] = field(default_factory=dict)

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        step = 4096 if self.layout == "shards" else 32
        offset = 96 if self.layout == "stacked" else 4096
        blob = bytearray(offset)
        for key in self._order():
            rows, cols = (HIDDEN, WIDTH) if key[2] == 2 else (WIDTH, HIDDEN)
            matrix = (rng.standard_normal((rows, cols)) / cols**0.5).astype(np.float32)
            self.matrices[key] = matrix
            self.chunks[key] = FakeChunk(0, len(blob), matrix.nbytes, QuantType.F32)
            blob += matrix.tobytes()
            blob += bytes(-len(blob) % step)
        self.path.write_bytes(bytes(blob).rstrip(b"\0"))

    def _order(self) -> list[tuple[int, int, int]]:
        experts, linears = range(self.num_experts), range(3)
        if self.layout == "stacked":
            return [(layer, e, i) for layer in self.moe_layers() for i in linears for e in experts]
        return [(layer, e, i) for layer in self.moe_layers() for e in experts for i in linears]

    def moe_layers(self) -> list[int]:
        return [layer for layer in range(self.num_layers) if layer not in self.dense_layers]

    def chunk(self, layer: int, expert: int, linear: int) -> FakeChunk:
        return self.chunks[layer, expert, linear]

    def routers(self, num_experts_per_tok: int) -> list[RouterWeights | None]:
        spec = RouterSpec(self.num_experts, num_experts_per_tok)
        weight = ReferenceBackend().weight(np.zeros(4 * self.num_experts, np.uint8), QuantType.F32, self.num_experts, 1)
        return [
            RouterWeights(layer, spec, np.ones(HIDDEN, np.float32), 1e-5, weight)
            if layer not in self.dense_layers
            else None
            for layer in range(self.num_layers)
        ]

    def expected(self, layer: int, x: np.ndarray, routing: Routing) -> np.ndarray:
        """What the layer's experts add, all of them in memory."""
        backend = ReferenceBackend()
        at = [
            np.array([self.matrices[layer, e, i].ctypes.data for e in range(self.num_experts)], np.int64)
            for i in range(3)
        ]
        types = np.zeros(self.num_experts, np.uint8)
        table = ExpertTable(*at, types, types, types, HIDDEN, WIDTH)
        groups = group_by_expert(routing.topk_ids)
        which = np.arange(groups.expert_ids.size, dtype=np.int32)
        h, d = backend.pair_buffers(routing.topk_ids.size, WIDTH, HIDDEN)
        backend.expert_gate_up(Activations(x), table, groups, which, h)
        backend.expert_down(h, table, groups, which, d)
        return backend.expert_combine(d, groups, routing.topk_weights)


def read_file(path: Path) -> Callable[[int, int, memoryview, int], None]:
    """A plain read function for the queue."""
    fd = os.open(path, os.O_RDONLY)

    def read(file_index: int, offset: int, out: memoryview, needed_bytes: int) -> None:
        got = os.preadv(fd, [out], offset)
        if got < needed_bytes:
            raise OSError(f"short read at {offset}: {got} of {needed_bytes}")

    return read


class DelayedReads:
    """Every read takes a seeded random time, so that with several threads chunks land in another order each time."""

    def __init__(self, read: Callable[[int, int, memoryview, int], None], seed: int, longest_s: float = 0.002) -> None:
        self._read = read
        self._rng = np.random.default_rng(seed)
        self._longest_s = longest_s
        self._lock = threading.Lock()

    def __call__(self, file_index: int, offset: int, out: memoryview, needed_bytes: int) -> None:
        with self._lock:
            before, after = self._rng.random(2) * self._longest_s
        time.sleep(before)
        self._read(file_index, offset, out, needed_bytes)
        time.sleep(after)


class GatedReads:
    """Reads stop before they begin until `permits` are released; `started` lists (offset, n_bytes) in order of begin.
    """

    def __init__(self, read: Callable[[int, int, memoryview, int], None]) -> None:
        self._read = read
        self.permits = threading.Semaphore(0)
        self.began = threading.Semaphore(0)
        self.started: list[tuple[int, int]] = []

    def __call__(self, file_index: int, offset: int, out: memoryview, needed_bytes: int) -> None:
        self.started.append((offset, len(out)))
        self.began.release()
        self.permits.acquire()
        self._read(file_index, offset, out, needed_bytes)

    def allow(self, count: int = 1) -> None:
        for _ in range(count):
            self.permits.release()


def run_calls(
    controller: ResidencyController,
    store: FakeStore,
    seed: int,
    sizes: list[int],
    after: Callable[[ResidencyController], None] | None = None,
) -> None:
    """Forward calls of `sizes` tokens with random routing; every layer's result must equal the resident one bit for
    bit. after: looks at the controller behind each call.
    """
    rng = np.random.default_rng(seed)
    backend = ReferenceBackend()
    for n_tokens in sizes:
        controller.begin(np.zeros(n_tokens, np.int64), 0, "decode" if n_tokens == 1 else "prefill")
        for layer in store.moe_layers():
            x = rng.standard_normal((n_tokens, HIDDEN)).astype(np.float32)
            logits = rng.standard_normal((n_tokens, store.num_experts)).astype(np.float32)
            a = backend.activations(x)
            routing = controller.select(layer, x, a, logits)
            got = controller.compute(layer, a, routing)
            np.testing.assert_array_equal(got, store.expected(layer, x, routing))
        controller.end()
        if after is not None:
            after(controller)
