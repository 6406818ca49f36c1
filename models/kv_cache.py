"""`KVCache`: what a sequence leaves behind in every layer, with a capacity that is fixed when it is made.

Everything is allocated at once, so a run that starts has room for its whole context. Rolling back is setting `length`.
"""

from __future__ import annotations

import numpy as np

from kernels.backend import Backend, KVLayer
from kernels.quant_types import QuantType, block_size, row_bytes
from models.config import ModelConfig
from models.errors import UsageError
from models.rope import build_rope_table

STORED_AS = {"f32": QuantType.F32, "f16": QuantType.F16, "q8_0": QuantType.Q8_0}


class KVCache:
    """`layers[l]` are the keys and values of layer l, `rope` the rotations of all positions, `length` those filled."""

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
        self.n_bytes = capacity * self.bytes_per_token(config, k_dtype, v_dtype)
        self.capacity = capacity
        self.length = 0
        table = build_rope_table(config.rope, capacity, rope_freqs)
        table_bytes = table.cos.nbytes + table.sin.nbytes
        self.n_bytes += table_bytes
        self.rope = type(table)(
            backend.from_host(table.cos), backend.from_host(table.sin), table.n_rot, table.interleaved
        )
        self.layers: list[KVLayer] = [
            backend.kv_layer(config.num_kv_heads, capacity, config.head_dim, config.value_dim, k_dtype)
            for _ in range(config.num_layers)
        ]

    def truncate(self, length: int) -> None:
        """Forget the positions from `length` on. Raises ValueError for a length that is not in 0..self.length."""
        if not 0 <= length <= self.length:
            raise ValueError(f"truncate to {length}, the cache holds {self.length} positions")
        self.length = length

    @staticmethod
    def bytes_per_token(config: ModelConfig, k_dtype: str = "f16", v_dtype: str = "f16") -> int:
        """Bytes of keys and values of one position in all layers. Raises UsageError as the constructor does."""
        if k_dtype != v_dtype:
            raise UsageError(f"KV cache types {k_dtype} and {v_dtype}: keys and values must have the same type")
        if k_dtype not in STORED_AS:
            raise UsageError(f"KV cache type {k_dtype!r} is not supported; supported: {', '.join(STORED_AS)}")
        stored = STORED_AS[k_dtype]
        for width in (config.head_dim, config.value_dim):
            if width % block_size(stored):
                raise UsageError(
                    f"KV cache type {k_dtype} needs heads of a multiple of {block_size(stored)}, not {width}"
                )
        per_head = row_bytes(stored, config.head_dim) + row_bytes(stored, config.value_dim)
        return config.num_layers * config.num_kv_heads * per_head
