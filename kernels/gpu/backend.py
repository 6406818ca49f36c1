"""`GpuBackend`: the op set on torch tensors, by Triton kernels that read GGUF blocks in place.

On a CUDA or ROCm device, or on the CPU through Triton's interpreter (TRITON_INTERPRET=1 before triton is imported),
which shows that kernels are right and not how fast they are. Ops never wait for the device, except those that answer on
the host: `to_host` and `route`. What they give back while decoding stays as it is until the model is called again.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
import torch

from kernels.backend import Activations, KVLayer, RopeTable, Weight
from kernels.delta_rule import DeltaRule
from kernels.gpu import attention as attention_ops
from kernels.gpu import conv, delta_rule, embed, gates, layer_norm, norm, selective_scan
from kernels.gpu import rope as rope_ops
from kernels.gpu.device_arrays import this_device
from kernels.gpu.expert_ops import ExpertOps
from kernels.gpu.tiling import Device
from kernels.gpu.workspace import Fresh
from kernels.selective_scan import SelectiveScan

__all__ = ["GpuBackend", "this_device"]


class GpuBackend(ExpertOps):
    """`kernels.backend.Backend` for one GPU. `device` names what tiles are chosen for, this machine's by default."""

    name = "cuda"

    def __init__(self, device: Device | None = None) -> None:
        super().__init__(device)
        self._position = torch.zeros(1, dtype=torch.int32, device=self.torch_device)
        self._position_value = 0
        self._covered = 0

    def embed(self, table: Weight, token_ids: np.ndarray) -> torch.Tensor:
        """Begins a call of the model: what earlier calls were given may be given out again."""
        if token_ids.size and not 0 <= int(token_ids.min()) <= int(token_ids.max()) < table.n_rows:
            raise ValueError(f"token ids must lie in 0..{table.n_rows - 1}, got {token_ids.min()}..{token_ids.max()}")
        self.memory.restart()
        ids = self.upload(token_ids.astype(np.int64, copy=False))
        return embed.embed(table, ids, self.device, self.memory)

    def norm(
        self, x: torch.Tensor, weight: torch.Tensor, eps: float, readers: Sequence[Weight] = ()
    ) -> Activations:
        return Activations(norm.norm(x, weight, eps, self.device, self.memory))

    def layer_norm(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float) -> Activations:
        return Activations(layer_norm.layer_norm(x, weight, bias, eps, self.device, self.memory))

    def head_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        return norm.head_norm(x, weight, eps, self.device)

    def concatenate(self, rows: Sequence[torch.Tensor]) -> torch.Tensor:
        return torch.cat(list(rows))

    def activations(self, x: torch.Tensor) -> Activations:
        return Activations(x)

    def position(self, start: int) -> torch.Tensor:
        """int32 [1] on the device that holds `start`; always the same memory, so that a recorded launch reads the value
        of its replay.
        """
        if start != self._position_value:
            self._position.fill_(start)
            self._position_value = start
        return self._position

    def rope_write(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, rope: RopeTable, start: int, cache: KVLayer
    ) -> None:
        stop, capacity = start + q.shape[0], cache.k.shape[1]
        if stop > rope.cos.shape[0] or (q.shape[0] if cache.ring else stop) > capacity:
            raise ValueError(f"positions up to {stop} in a KV cache of {capacity}, rope table of {rope.cos.shape[0]}")
        rope_ops.rope_write(q, k, v, rope, self.position(start), cache)

    def attention(
        self, q: torch.Tensor, cache: KVLayer, start: int, num_heads: int, scale: float, window: int = 0,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:  # fmt: skip
        n_tokens, (num_kv_heads, capacity, _) = q.shape[0], cache.k.shape
        n_needed = n_tokens + (max(window, 1) - 1 if cache.ring else start)
        if num_heads % num_kv_heads or q.shape[1] % num_heads or n_needed > capacity or (cache.ring and not window):
            raise ValueError(f"attention of q {tuple(q.shape)}, {num_heads} heads at {start}, over {cache.k.shape}")
        covered = max(self._covered, start + n_tokens)
        return attention_ops.attention(
            q, cache, self.position(start), covered, num_heads, scale, window, sinks, self.device, self.memory
        )

    def sigmoid_gate(self, x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        return gates.sigmoid_gate(x, gate)

    def gated_norm(self, x: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        return norm.gated_norm(x, gate, weight, eps, self.device)

    def causal_conv(
        self, x: torch.Tensor, kernel: torch.Tensor, state: torch.Tensor, silu: bool, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        return conv.causal_conv(x, kernel, state, silu, bias, self.memory)

    def delta_rule(
        self, qkv: torch.Tensor, beta: torch.Tensor, alpha: torch.Tensor, rule: DeltaRule, state: torch.Tensor
    ) -> torch.Tensor:
        return delta_rule.delta_rule(qkv, beta, alpha, rule, state, self.device, self.memory)

    def selective_scan(
        self, xbc: torch.Tensor, dt: torch.Tensor, scan: SelectiveScan, state: torch.Tensor
    ) -> torch.Tensor:
        return selective_scan.selective_scan(xbc, dt, scan, state, self.device, self.memory)

    def recording(self, length: int) -> GpuBackend:
        """This backend for launches that are recorded: those of attention serve `length` positions, and results are in
        memory of their own.
        """
        made = copy.copy(self)
        made._covered, made.memory = length, Fresh(self.torch_device)
        return made
