"""`GraphedBlock`: a layer whose attention, norms and router are one recorded launch while decoding.

From the stream that comes in to the router's choice every shape is fixed and every address too; the position is read
from device memory. What follows depends on the choice and is launched by the provider. The first token at a length is
launched op by op, which compiles kernels; the second is recorded. Replays give the bits of the single launches.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from kernels.backend import Activations, Array, Backend, RopeTable
from kernels.gpu.device_calls import DeviceCalls, Graph
from models.expert_provider import ExpertProvider
from models.layers import Attention, Block
from models.model import Model
from models.moe import MoE

SHORTEST = 256  # positions that the first recording covers; each further one covers twice as many


class RecordingBackend(Protocol):
    """What is needed of `kernels.gpu.backend.GpuBackend` beyond `Backend`."""

    def position(self, start: int) -> Array:
        """Set the position that recorded launches read."""
        ...

    def covering(self, length: int) -> Backend:
        """The backend whose attention launches serve `length` positions."""
        ...

    def route_on_device(self, router_logits: Array, spec: Any, selection_bias: Array | None = None) -> Any: ...

    def note_route(self, router_logits: Array, answer: Any) -> None:
        """`route` of these logits has been launched: `answer` is what `route_on_device` gave."""
        ...


@dataclass(slots=True)
class _Segment:
    """x_in: where the recording reads the stream; outputs: residual, normed rows, logits and routing it leaves."""

    x_in: Array
    start: int = 0
    outputs: tuple[Array, Activations, Array, Any] | None = None
    graph: Graph | None = None


class GraphedBlock:
    """Stands in the place of `block`, a `Block` of `Attention` and `MoE`, on a backend that can be recorded."""

    def __init__(self, block: Block, calls: DeviceCalls, backend: RecordingBackend) -> None:
        if not isinstance(block.attn, Attention) or not isinstance(block.ffn, MoE):
            raise ValueError("only attention and experts are recorded")
        self.attn = block.attn
        self.ffn = block.ffn
        self._block = block
        self._calls = calls
        self._backend = backend
        self._segments: dict[tuple[int, int], _Segment] = {}  # by cache and positions covered

    def __call__(
        self, backend: Backend, x: Array, kept: Any, rope: RopeTable, start: int, provider: ExpertProvider
    ) -> Array:
        """As `Block`."""
        if x.shape[0] != 1 or kept.ring:  # a ring wraps, so that no number of positions covers what comes
            return self._block(backend, x, kept, rope, start, provider)
        covered = SHORTEST
        while covered <= start:
            covered *= 2
        x, a, router_logits, answer = self._attend(x, kept, rope, start, min(covered, kept.k.shape[1]))
        self._backend.note_route(router_logits, answer)
        return self._block.leave(x, self.ffn.choose(backend, x, a, router_logits, provider))

    def _attend(
        self, x: Array, kept: Any, rope: RopeTable, start: int, covered: int
    ) -> tuple[Array, Activations, Array, Any]:
        """The stream after attention, and what the router reads and says."""
        self._backend.position(start)
        segment = self._segments.get((id(kept), covered))
        if segment is None:
            segment = self._segments[id(kept), covered] = _Segment(x * 1.0)
            return self._launch(segment.x_in, kept, rope, start, covered)
        segment.x_in[:] = x
        segment.start = start
        if segment.graph is None:
            segment.graph = self._calls.capture(self._work(segment, kept, rope, covered))
        segment.graph.replay()
        if segment.outputs is None:
            raise RuntimeError("a recorded segment left nothing")
        x, a, router_logits, answer = segment.outputs
        return x, Activations(a.x), router_logits, answer  # without the forms that an earlier token's rows had

    def _work(self, segment: _Segment, kept: Any, rope: RopeTable, covered: int) -> Callable[[], None]:
        def work() -> None:
            segment.outputs = self._launch(segment.x_in, kept, rope, segment.start, covered)

        return work

    def _launch(
        self, x: Array, kept: Any, rope: RopeTable, start: int, covered: int
    ) -> tuple[Array, Activations, Array, Any]:
        backend, router = self._backend.covering(covered), self.ffn.router
        x = self._block.attend(backend, x, kept, rope, start)
        a, router_logits = self.ffn.inputs(backend, x)
        return x, a, router_logits, self._backend.route_on_device(router_logits, router.spec, router.exp_probs_b)


def record_decoding(model: Model, calls: DeviceCalls, backend: RecordingBackend) -> int:
    """Let the blocks of `model` that can be recorded be so from now on; returns how many. Mutates `model.blk`."""
    recorded = 0
    blocks: list[Any] = list(model.blk)
    for i, block in enumerate(model.blk):
        if type(block) is Block and type(block.attn) is Attention and type(block.ffn) is MoE:
            blocks[i] = GraphedBlock(block, calls, backend)
            recorded += 1
    model.blk[:] = blocks
    return recorded
