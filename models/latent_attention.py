"""Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1) in its absorbed form.

The cache holds one latent and one rotated key a position, for all heads. A query head is carried into the latent's
space by `attn_k_b`, so that attention is over one shared key head, and its result is brought back by `attn_v_b`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kernels.backend import Activations, Array, Backend, KVLayer, RopeTable, Weight
from kernels.quant_types import QuantType
from kernels.reference.dequant import dequantize_rows
from models.config import ModelConfig
from models.config_latent import LatentConfig
from models.gguf import GGUFModel
from models.weights import WeightSource, rows_of


@dataclass(slots=True)
class LatentAttention:
    """`attn_q` is `attn_q_b` where queries are compressed first; `attn_kv_a` and `attn_k_pe` are the rows of
    `attn_kv_a_mqa` that make the latent and the rotated key; `attn_k_b[h]` [rank, nope_dim], `attn_v_b[h]`
    [value_dim, rank].
    """

    latent: LatentConfig
    n_rot: int
    norm_eps: float
    scale: float
    attn_norm: Array
    attn_q: Weight
    attn_kv_a: Weight
    attn_k_pe: Weight
    attn_kv_a_norm: Array
    attn_k_b: list[Weight]
    attn_v_b: list[Weight]
    attn_output: Weight
    attn_q_a: Weight | None = None
    attn_q_a_norm: Array | None = None

    @classmethod
    def read(cls, source: WeightSource, config: ModelConfig, layer: int) -> LatentAttention:
        """Take the attention tensors of `layer`, from either layout."""
        latent = config.latent
        if latent is None:
            raise ValueError(f"{config.architecture} has no latent attention")
        blk, hidden, heads, rank = f"blk.{layer}", config.hidden_size, config.num_heads, latent.kv_lora_rank
        n_rot, q_rank = config.rope.n_rot, latent.q_lora_rank
        n_q = heads * (latent.nope_dim + n_rot)
        kv_a = source.matrix(f"{blk}.attn_kv_a_mqa.weight", rank + n_rot, hidden)
        k_b, v_b = _expansions(source, blk, heads, latent)
        part = cls(
            latent=latent,
            n_rot=n_rot,
            norm_eps=config.rms_norm_eps,
            scale=config.attention_scale,
            attn_norm=source.vector(f"{blk}.attn_norm.weight", hidden),
            attn_q=source.matrix(f"{blk}.attn_q{'_b' if q_rank else ''}.weight", n_q, q_rank or hidden),
            attn_kv_a=rows_of(kv_a, 0, rank),
            attn_k_pe=rows_of(kv_a, rank, rank + n_rot),
            attn_kv_a_norm=source.vector(f"{blk}.attn_kv_a_norm.weight", rank),
            attn_k_b=k_b,
            attn_v_b=v_b,
            attn_output=source.matrix(f"{blk}.attn_output.weight", hidden, heads * latent.value_dim),
        )
        if q_rank:
            part.attn_q_a = source.matrix(f"{blk}.attn_q_a.weight", q_rank, hidden)
            part.attn_q_a_norm = source.vector(f"{blk}.attn_q_a_norm.weight", q_rank)
        return part

    def __call__(self, backend: Backend, x: Array, kv: KVLayer, rope: RopeTable, start: int) -> Array:
        """What attention adds to the residual x [T, D] at positions start..; writes the latents into `kv`."""
        n_tokens, heads, rank = x.shape[0], len(self.attn_k_b), self.latent.kv_lora_rank
        a = backend.norm(x, self.attn_norm, self.norm_eps, readers=(self.attn_kv_a,))
        latent = backend.norm(backend.linear(a, self.attn_kv_a), self.attn_kv_a_norm, self.norm_eps).x
        k = backend.new_rows(n_tokens, self.n_rot + rank)  # [rotated | latent]
        k[:, : self.n_rot] = backend.linear(a, self.attn_k_pe)
        k[:, self.n_rot :] = latent
        q = self._queries(backend, a)
        backend.rope_write(q, k, latent, rope, start, kv)
        mixed = backend.attention(q, kv, start, heads, self.scale)  # [T, H * rank]
        width = self.latent.value_dim
        out = backend.new_rows(n_tokens, heads * width)
        for h, attn_v_b in enumerate(self.attn_v_b):
            own = _columns(backend, mixed, h * rank, (h + 1) * rank)
            out[:, h * width : (h + 1) * width] = backend.linear(backend.activations(own), attn_v_b)
        return backend.linear(backend.activations(out), self.attn_output)

    def _queries(self, backend: Backend, a: Activations) -> Array:
        """[T, H * (n_rot + rank)]: each head as [to be rotated | carried into the latent's space]."""
        if self.attn_q_a is not None:
            a = backend.norm(
                backend.linear(a, self.attn_q_a), self.attn_q_a_norm, self.norm_eps, readers=(self.attn_q,)
            )
        flat = backend.linear(a, self.attn_q)  # [T, H * (nope_dim + n_rot)]
        nope, n_rot = self.latent.nope_dim, self.n_rot
        width = n_rot + self.latent.kv_lora_rank
        q = backend.new_rows(flat.shape[0], len(self.attn_k_b) * width)
        for h, attn_k_b in enumerate(self.attn_k_b):
            first, at = h * (nope + n_rot), h * width
            own = _columns(backend, flat, first, first + nope)
            q[:, at : at + n_rot] = flat[:, first + nope : first + nope + n_rot]
            q[:, at + n_rot : at + width] = backend.linear(backend.activations(own), attn_k_b)
        return q


def expansion_bytes(gguf: GGUFModel, config: ModelConfig) -> int:
    """Bytes that `LatentAttention.read` allocates beside the file's own tensors: `attn_k_b` made from `attn_kv_b`."""
    latent = config.latent
    if latent is None:
        return 0
    n_layers = sum(f"blk.{layer}.attn_kv_b.weight" in gguf.tensors for layer in range(config.num_layers))
    return n_layers * config.num_heads * latent.nope_dim * latent.kv_lora_rank * 4


def _expansions(source: WeightSource, blk: str, heads: int, latent: LatentConfig) -> tuple[list[Weight], list[Weight]]:
    """`attn_k_b` and `attn_v_b` of each head: stored, or cut from `attn_kv_b` [H * (nope_dim + value_dim), rank]."""
    rank, nope, width, backend = latent.kv_lora_rank, latent.nope_dim, latent.value_dim, source.backend
    if not source.has(f"{blk}.attn_kv_b.weight"):
        k_b = source.stack(f"{blk}.attn_k_b.weight", heads, rank, nope)
        return k_b, source.stack(f"{blk}.attn_v_b.weight", heads, width, rank)
    kv_b = source.matrix(f"{blk}.attn_kv_b.weight", heads * (nope + width), rank)
    k_b, v_b = [], []
    for h in range(heads):
        first = h * (nope + width)
        # Transposing crosses the blocks of quantised rows, so this part is kept as plain numbers.
        stored = backend.to_host(rows_of(kv_b, first, first + nope).data)
        transposed = np.ascontiguousarray(dequantize_rows(stored, kv_b.quant_type, rank).T)
        k_b.append(backend.weight(transposed.view(np.uint8).reshape(-1), QuantType.F32, rank, nope))
        v_b.append(rows_of(kv_b, first + nope, first + nope + width))
    return k_b, v_b


def _columns(backend: Backend, x: Array, first: int, stop: int) -> Array:
    """Columns first..stop - 1 of x [T, ..] as contiguous rows: a view of one row, a copy of more."""
    if x.shape[0] == 1:
        return x[:, first:stop]
    out = backend.new_rows(x.shape[0], stop - first)
    out[:] = x[:, first:stop]
    return out
