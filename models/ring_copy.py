"""The window of a ring of keys and values as it was at one length of the sequence, so that a conversation can come back
to there after the ring has gone round.
"""

from __future__ import annotations

from kernels.backend import Backend, KVLayer
from models.layer_memory import LayerMemory


class RingCopy:
    """`save` and `restore` the positions that a token at a given length sees, less that token itself."""

    def __init__(self, backend: Backend, ring: KVLayer, memory: LayerMemory, k_dtype: str, v_dtype: str) -> None:
        self._ring = ring
        self._seen = memory.window - 1
        self._copy = backend.kv_layer(
            memory.num_kv_heads, max(self._seen, 1), memory.head_dim, memory.value_dim, k_dtype, v_dtype
        )

    def save(self, length: int) -> None:
        """Copy the newest positions of a sequence of `length` out of the ring."""
        for ring, copy in self._spans(length):
            self._copy.k[:, copy] = self._ring.k[:, ring]
            self._copy.v[:, copy] = self._ring.v[:, ring]

    def restore(self, length: int) -> None:
        """Put back what `save` copied at this very length (mutates the ring)."""
        for ring, copy in self._spans(length):
            self._ring.k[:, ring] = self._copy.k[:, copy]
            self._ring.v[:, ring] = self._copy.v[:, copy]

    def _spans(self, length: int) -> list[tuple[slice, slice]]:
        """(places in the ring, places in the copy): one span, or two where the ring's end lies between."""
        n = min(self._seen, length)
        first = (length - n) % self._ring.capacity
        before = min(n, self._ring.capacity - first)
        spans = [(slice(first, first + before), slice(0, before)), (slice(0, n - before), slice(before, n))]
        return [span for span in spans if span[1].stop > span[1].start]
