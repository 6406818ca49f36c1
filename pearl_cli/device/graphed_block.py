"""`GraphedBlock`: a layer that is one recorded launch while decoding, up to where its experts depend on the routing.

From the stream that comes in to the router's choice every shape is fixed and every address too; the position is read
from device memory, and with it the place in a cache or ring; recurrent states stay where they are. A layer without
experts is recorded as a whole. What follows the choice is launched by the provider.

Where attention sees everything before it, a recording serves a number of positions, and each further one twice as many;
one of a window or of a recurrent layer serves all. The first token of a recording is launched op by op, which compiles
kernels; the second is recorded. Replays give the bits of the single launches.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from kernels.backend import Activations, Array, Backend, KVLayer, RopeTable
from kernels.gpu.device_calls import DeviceCalls, Graph
from models.delta_net import GatedDeltaNet
from models.expert_provider import ExpertProvider
from models.gemma4_feed_forward import GemmaFeedForward
from models.latent_attention import LatentAttention
from models.layers import Attention, Block, DenseFFN
from models.mamba2 import Mamba2
from models.model import Model
from models.moe import MoE
from models.short_conv import ShortConv

SHORTEST = 256  # positions that the first recording covers

_FIRST_HALVES = (Attention, LatentAttention, GatedDeltaNet, Mamba2, ShortConv)
_SECOND_HALVES = (MoE, GemmaFeedForward, DenseFFN)


class RecordingBackend(Protocol):
    """What is needed of `kernels.gpu.backend.GpuBackend` beyond `Backend`."""

    def position(self, start: int) -> Array:
        """Set the position that recorded launches read."""
        ...

    def recording(self, length: int) -> Any:
        """The backend for launches that are recorded, whose attention serves `length` positions."""
        ...

    def note_route(self, router_logits: Array, answer: Any) -> None:
        """`route` of these logits has been launched: `answer` is what `route_on_device` gave."""
        ...


@dataclass(slots=True)
class _Segment:
    """x_in: where the recording reads the stream; outputs: the stream that it leaves and, of a layer with experts, what
    the second half goes on from and the router's answer.
    """

    x_in: Array = None
    outputs: tuple[Any, ...] = ()
    graph: Graph | None = None


class GraphedBlock:
    """Stands in the place of `block`, on a backend that can be recorded."""

    def __init__(self, block: Block, calls: DeviceCalls, backend: RecordingBackend) -> None:
        """Raises ValueError for a block of parts that nobody has shown to be recordable."""
        if not can_be_recorded(block):
            raise ValueError(f"{type(block.attn).__name__} and {type(block.ffn).__name__} are not recorded")
        self.attn = block.attn
        self.ffn = block.ffn
        self._block = block
        self._calls = calls
        self._backend = backend
        self._kept: Any = None
        self._segments: dict[int, _Segment] = {}  # by positions covered; they read and write `_kept`

    def __call__(
        self, backend: Backend, x: Array, kept: Any, rope: RopeTable, start: int, provider: ExpertProvider
    ) -> Array:
        """As `Block`."""
        if x.shape[0] != 1:
            return self._block(backend, x, kept, rope, start, provider)
        if kept is not self._kept:
            self._kept, self._segments = kept, {}
        self._backend.position(start)
        covered = self._covered(kept, rope, start)
        segment = self._segments.get(covered)
        if segment is None:
            self._segments[covered] = _Segment()
            return self._finish(backend, self._launch(x, kept, rope, start, covered), provider)
        self._replay(segment, x, lambda: self._launch(x, kept, rope, start, covered))
        return self._finish(backend, segment.outputs, provider)

    def _covered(self, kept: Any, rope: RopeTable, start: int) -> int:
        """Positions that the recording for a token at `start` serves."""
        most: int = rope.cos.shape[0]
        if not isinstance(kept, KVLayer) or (isinstance(self.attn, Attention) and self.attn.window):
            return most
        covered = SHORTEST
        while covered <= start:
            covered *= 2
        return min(covered, most)

    def _replay(self, segment: _Segment, x: Array, work: Callable[[], tuple[Any, ...]]) -> None:
        """One launch, which leaves `segment.outputs`; the stream is copied only if it lies elsewhere than it did."""
        if segment.graph is None:

            def keep() -> None:
                segment.outputs = work()

            segment.x_in = x
            segment.graph = self._calls.capture(keep)
        elif x is not segment.x_in:
            segment.x_in[:] = x
        segment.graph.replay()

    def _launch(
        self, x: Array, kept: Any, rope: RopeTable, start: int, covered: int
    ) -> tuple[Any, ...]:
        backend, ffn = self._backend.recording(covered), self.ffn
        x = self._block.attend(backend, x, kept, rope, start)
        if isinstance(ffn, DenseFFN):
            return (self._block.leave(x, ffn.added(backend, x)),)
        inputs: tuple[Any, ...] = ffn.inputs(backend, x)  # type: ignore[attr-defined]
        router = ffn.router
        if router is None:
            raise ValueError("experts without a router")
        return (x, *inputs, backend.route_on_device(inputs[1], router.spec, router.exp_probs_b))

    def _finish(self, backend: Backend, outputs: tuple[Any, ...], provider: ExpertProvider) -> Array:
        """What comes after the choice. The stream is added to where it lies, which is the recording's own memory."""
        x, *inputs = outputs
        if not inputs:
            return x
        *inputs, answer = inputs
        self._backend.note_route(inputs[1], answer)
        # without the forms that an earlier token's rows had
        inputs = [Activations(value.x) if isinstance(value, Activations) else value for value in inputs]
        added = self.ffn.choose(backend, x, *inputs, provider)  # type: ignore[attr-defined]
        if self._block.residual_scale != 1.0:
            added *= self._block.residual_scale
        x += added
        if self._block.output_scale != 1.0:
            x *= self._block.output_scale
        return x


def can_be_recorded(block: object) -> bool:
    """Whether both halves are of kinds whose launches are the same for every token."""
    return type(block) is Block and type(block.attn) in _FIRST_HALVES and type(block.ffn) in _SECOND_HALVES


def record_decoding(model: Model, calls: DeviceCalls, backend: RecordingBackend) -> int:
    """Let the blocks of `model` that can be recorded be so from now on; returns how many. Mutates `model.blk`."""
    blocks: list[Any] = [
        GraphedBlock(block, calls, backend) if can_be_recorded(block) else block for block in model.blk
    ]
    model.blk[:] = blocks
    return sum(isinstance(block, GraphedBlock) for block in blocks)
