"""`KVCache`: what a sequence leaves behind in every layer, with a capacity that is fixed when it is made.

Everything is allocated at once, so a run that starts has room for its whole context. Rolling back is setting `length`,
as far as that goes: a window layer keeps a ring of positions, a recurrent layer only its newest state, and both a copy
of what they were when `keep` was called, so ask `rewindable` first.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kernels.backend import Array, Backend, KVLayer, RopeTable
from models.config import ModelConfig
from models.config_rope import RopeConfig
from models.layer_memory import STORED_AS, LayerMemory
from models.ring_copy import RingCopy
from models.rope import build_rope_table

__all__ = ["STORED_AS", "KVCache", "LayerStore", "RecurrentLayer"]


@dataclass(slots=True)
class RecurrentLayer:
    """float32 arrays on the backend's device, in the order of `LayerMemory.state`, that each token overwrites; `kept`
    are copies of them at an earlier position.
    """

    arrays: tuple[Array, ...]
    kept: tuple[Array, ...]


LayerStore = KVLayer | RecurrentLayer


class KVCache:
    """`layers[l]` is what layer l keeps, `ropes[l]` the rotations of all positions in it, `length` the positions
    filled.
    """

    def __init__(
        self,
        config: ModelConfig,
        backend: Backend,
        capacity: int,
        k_dtype: str = "f16",
        v_dtype: str = "f16",
        rope_freqs: np.ndarray | None = None,
    ) -> None:
        """Allocates all of it. `rope_freqs` float32 [n_rot / 2] are divisors of the frequencies that a file may carry.

        Raises UsageError for a type that cannot store this model's heads, ValueError for a capacity below 1.
        """
        if capacity < 1:
            raise ValueError(f"a KV cache of {capacity} positions")
        self.n_bytes = self.planned_bytes(config, capacity, k_dtype, v_dtype)
        self.capacity = capacity
        self.length = 0
        self._memory = config.layer_memory
        self._reach = 0  # positions that were written since the cache was last empty, by failed calls too
        self._state_at = 0  # positions that the recurrent states have seen; where a call has failed, those of that call
        self._kept_length = 0  # where copies of them, and of the rings' windows, were made
        self._restored_length = 0  # where rings were last filled from their copies: nothing before it is there
        self.rope = _rope_on(backend, config.rope, capacity, rope_freqs)
        own = config.rope_window
        own_freqs = rope_freqs if config.rope.scaling == "off" else None  # they are those of the layers that rotate
        window_rope = self.rope if own is None else _rope_on(backend, own, capacity, own_freqs)
        self.ropes = [window_rope if memory.window else self.rope for memory in self._memory]
        types = k_dtype, v_dtype
        self.layers: list[LayerStore] = [_new_layer(backend, memory, capacity, *types) for memory in self._memory]
        self._recurrent = [layer for layer in self.layers if isinstance(layer, RecurrentLayer)]
        self._rings = [
            RingCopy(backend, layer, memory, *types)
            for layer, memory in zip(self.layers, self._memory, strict=True)
            if isinstance(layer, KVLayer) and layer.ring
        ]

    def begin(self, n_tokens: int) -> None:
        """Positions length .. length + n_tokens - 1 are about to be written. Raises ValueError where there is no room,
        or where a failed call has destroyed what they need.
        """
        if self.length + n_tokens > self.capacity:
            raise ValueError(f"{self.length} + {n_tokens} tokens in a KV cache of {self.capacity}")
        if self.rewindable(self.length) != self.length:
            raise ValueError(f"a failed call has overwritten what position {self.length} needs; truncate first")
        self._ready_states()
        self._ready_rings()
        if self.length == 0:
            self._reach = self._restored_length = 0
        if self.length < self._kept_length:
            self._kept_length = 0
        self._state_at = self.length + n_tokens
        self._reach = max(self._reach, self._state_at)

    def rewindable(self, length: int) -> int:
        """The longest prefix of at most `length` positions that `truncate` can go back to."""
        prefixes = (length, self._kept_length) if self._kept_length < length else (length,)
        return next((n for n in prefixes if all(self._reaches(memory, n) for memory in self._memory)), 0)

    def truncate(self, length: int) -> None:
        """Forget the positions from `length` on. Raises ValueError for a length that is not in 0..self.length, and for
        one that `rewindable` does not name.
        """
        if not 0 <= length <= self.length:
            raise ValueError(f"truncate to {length}, the cache holds {self.length} positions")
        if self.rewindable(length) != length:
            raise ValueError(f"truncate to {length}: not all layers can go back to there")
        self.length = length

    @property
    def has_states(self) -> bool:
        """Whether there are layers that cannot go back to everywhere, but to where `keep` was called."""
        return bool(self._recurrent or self._rings)

    def keep(self) -> None:
        """Copy the recurrent states and the rings' windows as they are now, so that `truncate` can come back to this
        length. There is one copy, the newest. Nothing to do where all layers keep everything.
        """
        if self._state_at == self.length:
            for layer in self._recurrent:
                for array, kept in zip(layer.arrays, layer.kept, strict=True):
                    kept[:] = array
            for ring in self._rings:
                ring.save(self.length)
            self._kept_length = self.length

    def _ready_states(self) -> None:
        """Make the recurrent states those of `length`: of nothing, as they stand, or from their copies."""
        if self.length in (0, self._kept_length) and self.length != self._state_at:
            for layer in self._recurrent:
                for array, kept in zip(layer.arrays, layer.kept, strict=True):
                    array[:] = kept if self.length else 0

    def _ready_rings(self) -> None:
        """Fill the rings from their copies where they have gone on too far beyond `length`."""
        if all(self._in_ring(memory, self.length) for memory in self._memory):
            return
        for ring in self._rings:
            ring.restore(self.length)
        self._reach = self._restored_length = self.length

    def _in_ring(self, memory: LayerMemory, length: int) -> bool:
        """Whether the positions that a token at `length` sees have not been written over since."""
        if length == 0 or not memory.window:
            return True
        oldest = max(0, length - memory.window + 1)
        return length >= self._restored_length and oldest + memory.slots(self.capacity) >= self._reach

    def _reaches(self, memory: LayerMemory, length: int) -> bool:
        """Whether all that a token at position `length` needs of this layer is still there."""
        if length in (0, self._kept_length):
            return True
        return self._in_ring(memory, length) and (not memory.state or length == self._state_at)

    @staticmethod
    def planned_bytes(config: ModelConfig, capacity: int, k_dtype: str = "f16", v_dtype: str = "f16") -> int:
        """What the constructor allocates. Raises UsageError as it does."""
        ropes = [config.rope] if config.rope_window is None else [config.rope, config.rope_window]
        tables = sum(4 * rope.n_rot * capacity for rope in ropes)
        return tables + sum(memory.n_bytes(capacity, k_dtype, v_dtype) for memory in config.layer_memory)

    @staticmethod
    def bytes_per_token(config: ModelConfig, k_dtype: str = "f16", v_dtype: str = "f16") -> int:
        """Bytes of keys and values of one position in all layers, as long as no window is full. Raises UsageError as
        the constructor does.
        """
        return sum(memory.bytes_per_position(k_dtype, v_dtype) for memory in config.layer_memory)


def _rope_on(backend: Backend, rope: RopeConfig, capacity: int, divisors: np.ndarray | None) -> RopeTable:
    table = build_rope_table(rope, capacity, divisors)
    return RopeTable(backend.from_host(table.cos), backend.from_host(table.sin), table.n_rot, table.interleaved)


def _new_layer(backend: Backend, memory: LayerMemory, capacity: int, k_dtype: str, v_dtype: str) -> LayerStore:
    if memory.state:
        state, kept = (tuple(backend.from_host(np.zeros(n, np.float32)) for n in memory.state) for _ in range(2))
        return RecurrentLayer(state, kept)
    slots = memory.slots(capacity)
    layer = backend.kv_layer(memory.num_kv_heads, slots, memory.head_dim, memory.value_dim, k_dtype, v_dtype)
    layer.ring = slots < capacity
    return layer
