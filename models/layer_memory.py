"""What one layer keeps of a sequence, as sizes: keys and values of all positions, of a window of them, or a state that
each token overwrites.

Arithmetic only; the arrays are `models.kv_cache`'s.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from kernels.quant_types import QuantType, block_size, row_bytes
from models.errors import UsageError

STORED_AS = {"f32": QuantType.F32, "f16": QuantType.F16, "q8_0": QuantType.Q8_0}
SLOT_ALIGNMENT = 64
"""A ring of keys has a multiple of so many positions, so that an aligned block of positions never wraps inside."""

WINDOW_STEP = 256
"""Positions of a window layer's ring beside its window: tokens of a prompt that are computed at once, and how far the
layer can be rolled back without a copy. 256 rows fill the kernels; at gpt-oss's window of 128 the ring is 384
positions of 131,072."""


@dataclass(frozen=True, slots=True)
class LayerMemory:
    """num_kv_heads 0: no keys and values. window: positions that attention sees, 0: all. state: shapes of the float32
    arrays that the layer carries from token to token.
    """

    num_kv_heads: int
    head_dim: int
    value_dim: int
    window: int = 0
    state: tuple[tuple[int, ...], ...] = ()

    def slots(self, capacity: int) -> int:
        """Positions that are stored of a sequence of `capacity`: all, or a ring where that is less."""
        if not self.window:
            return capacity
        ring = -(-(self.window + WINDOW_STEP) // SLOT_ALIGNMENT) * SLOT_ALIGNMENT
        return min(capacity, ring)

    def bytes_per_position(self, k_dtype: str, v_dtype: str) -> int:
        """Bytes of one stored position's keys and values. Raises UsageError for types that cannot store these heads."""
        if not self.num_kv_heads:
            return 0
        return self.num_kv_heads * (_row_bytes(k_dtype, self.head_dim) + _row_bytes(v_dtype, self.value_dim))

    @property
    def state_bytes(self) -> int:
        """Bytes of one copy of the state."""
        return 4 * sum(math.prod(shape) for shape in self.state)

    def n_bytes(self, capacity: int, k_dtype: str, v_dtype: str) -> int:
        """Bytes of all that the layer keeps, a state and a ring's window twice: as it is and as it was at an earlier
        position. Raises UsageError as `bytes_per_position`.
        """
        slots = self.slots(capacity)
        if slots < capacity:
            slots += max(self.window - 1, 1)
        return slots * self.bytes_per_position(k_dtype, v_dtype) + 2 * self.state_bytes


def states_of(layers: tuple[bool, ...], *shapes: tuple[int, ...]) -> tuple[LayerMemory | None, ...]:
    """What each layer keeps where those named by `layers` carry a state of `shapes` in place of keys and values, and
    None for the others.
    """
    own = LayerMemory(num_kv_heads=0, head_dim=0, value_dim=0, state=shapes)
    return tuple(own if carries else None for carries in layers)


def _row_bytes(dtype: str, width: int) -> int:
    if dtype not in STORED_AS:
        raise UsageError(f"KV cache type {dtype!r} is not supported; supported: {', '.join(STORED_AS)}")
    stored = STORED_AS[dtype]
    if width % block_size(stored):
        raise UsageError(f"KV cache type {dtype} needs heads of a multiple of {block_size(stored)}, not {width}")
    return row_bytes(stored, width)
