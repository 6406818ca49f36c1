"""Shared parts of the architectures: grouped-query attention, the dense feed-forward, and the block that joins two
halves.

Attributes are named after GGUF tensors. Parts hold weights and no state: what a sequence leaves behind is in `KVCache`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from kernels.backend import SILU, Activations, Array, Backend, GatedUnit, KVLayer, RopeTable, Weight
from models.config import ModelConfig
from models.expert_provider import ExpertProvider, RouterWeights
from models.rope import rope_frequencies
from models.stream_norm import normed
from models.weights import WeightSource, grouped_rows, rows_of


@dataclass(slots=True)
class Attention:
    """Causal self-attention of H query heads over G key/value heads; `qkv_bias` joins the three biases."""

    attn_norm: Array
    attn_q: Weight
    attn_k: Weight
    attn_v: Weight | None  # None: the keys, before their norm and rotation, are the values too
    attn_output: Weight
    norm_eps: float
    num_heads: int
    scale: float
    window: int = 0
    attn_q_norm: Array | None = None
    attn_k_norm: Array | None = None
    qkv_bias: Array | None = None
    output_bias: Array | None = None
    attn_norm_b: Array | None = None  # then the norm takes the mean off, and adds this
    attn_sinks: Array | None = None
    attn_v_norm: Array | None = None
    post_attention_norm: Array | None = None
    output_gate: Weight | None = None  # what attn_q holds behind each head's queries, where there is one
    qk_norm_eps: float = 0.0
    rotated_norm: Array | None = None  # [H * d] on rotated queries: the weights of norms that come behind the rotation

    @classmethod
    def read(
        cls,
        source: WeightSource,
        config: ModelConfig,
        layer: int,
        qk_norm: str = "none",
        bias: bool = False,
        output_bias: bool = False,
        output_gate: bool = False,
        value: bool = True,
    ) -> Attention:
        """Take the attention tensors of `layer`.

        `qk_norm`: "none", "head" (one norm weight for each head alike), "row" (one over all heads together) or
        "rotated" ("head", but behind the rotation).
        `bias`: the file must hold attn_q.bias, attn_k.bias and attn_v.bias; `output_bias`: attn_output.bias.
        `output_gate`: attn_q holds for each head its query's rows and behind them those of a gate. `value`: the file
        must hold attn_v.
        """
        blk, hidden = f"blk.{layer}", config.hidden_size
        kept = config.memory_of(layer)
        n_q, n_k = config.num_heads * kept.head_dim, kept.num_kv_heads * kept.head_dim
        n_v, n_out = kept.num_kv_heads * kept.value_dim, config.num_heads * kept.value_dim
        attn_q, gate = _query_and_gate(source, config, f"{blk}.attn_q.weight", kept.head_dim, output_gate)
        part = cls(
            attn_norm=source.vector(f"{blk}.attn_norm.weight", hidden),
            attn_q=attn_q,
            attn_k=source.matrix(f"{blk}.attn_k.weight", n_k, hidden),
            attn_v=source.matrix(f"{blk}.attn_v.weight", n_v, hidden) if value else None,
            attn_output=source.matrix(f"{blk}.attn_output.weight", hidden, n_out),
            norm_eps=config.rms_norm_eps,
            num_heads=config.num_heads,
            scale=config.attention_scale,
            window=kept.window,
            output_gate=gate,
            qk_norm_eps=config.rms_norm_eps,
        )
        if qk_norm == "rotated":
            part._read_rotated_norms(source, config, blk, kept.head_dim)
        elif qk_norm != "none":
            part.attn_q_norm = source.vector(f"{blk}.attn_q_norm.weight", n_q if qk_norm == "row" else kept.head_dim)
            part.attn_k_norm = source.vector(f"{blk}.attn_k_norm.weight", n_k if qk_norm == "row" else kept.head_dim)
        if bias:
            rows = {"attn_q": n_q, "attn_k": n_k, "attn_v": n_v}
            biases = [source.host_vector(f"{blk}.{name}.bias", size) for name, size in rows.items()]
            part.qkv_bias = source.backend.from_host(np.concatenate(biases))
        if output_bias:
            part.output_bias = source.vector(f"{blk}.attn_output.bias", hidden)
        return part

    def _read_rotated_norms(self, source: WeightSource, config: ModelConfig, blk: str, head_dim: int) -> None:
        """Take the norms of q and k that come behind the rotation. It stretches every head by one factor m, 1 but for
        some scalings, so the norms divide before it, with weights of 1: m x / sqrt(m^2 mean(x^2) + eps) is
        x / sqrt(mean(x^2) + eps / m^2). Scores are q * k, so both weights may stand on the rotated queries alone.
        """
        weights = [source.host_vector(f"{blk}.attn_{name}_norm.weight", head_dim) for name in "qk"]
        square = rope_frequencies(config.rope)[1] ** 2
        self.attn_q_norm = self.attn_k_norm = source.backend.from_host(np.ones(head_dim, np.float32))
        self.qk_norm_eps = config.rms_norm_eps / square
        both = np.tile(weights[0] * weights[1] / square, self.num_heads)
        self.rotated_norm = source.backend.from_host(both.astype(np.float32))

    def __call__(self, backend: Backend, x: Array, kv: KVLayer, rope: RopeTable, start: int) -> Array:
        """What attention adds to the residual x [T, D] at positions start..; writes its keys and values into `kv`."""
        weights = (self.attn_q, self.attn_k) if self.attn_v is None else (self.attn_q, self.attn_k, self.attn_v)
        a = normed(backend, x, self.attn_norm, self.attn_norm_b, self.norm_eps, weights)
        q, k, v = self._project(backend, a, weights)
        if self.attn_q_norm is not None:
            q = backend.head_norm(q, self.attn_q_norm, self.qk_norm_eps)
            k = backend.head_norm(k, self.attn_k_norm, self.qk_norm_eps)
        if self.attn_v_norm is not None:
            v = backend.head_norm(v, self.attn_v_norm, self.norm_eps)
        mixed = self._mix(backend, q, k, v, kv, rope, start)
        if self.output_gate is not None:
            mixed = backend.sigmoid_gate(mixed, backend.linear(a, self.output_gate))
        out = backend.linear(backend.activations(mixed), self.attn_output, bias=self.output_bias)
        return out if self.post_attention_norm is None else backend.norm(out, self.post_attention_norm, self.norm_eps).x

    def _mix(
        self, backend: Backend, q: Array, k: Array, v: Array, kv: KVLayer, rope: RopeTable, start: int
    ) -> Array:
        """Attention of the tokens' rows, written into `kv` as they come: where that is a ring, so many at a time that
        none overwrites what another sees."""
        n_tokens = q.shape[0]
        at_once = kv.capacity - self.window + 1 if kv.ring else n_tokens
        parts = []
        for first in range(0, n_tokens, at_once):
            rows = slice(first, first + at_once)
            own = q[rows]
            backend.rope_write(own, k[rows], v[rows], rope, start + first, kv)
            if self.rotated_norm is not None:
                own *= self.rotated_norm
            parts.append(
                backend.attention(own, kv, start + first, self.num_heads, self.scale, self.window, self.attn_sinks)
            )
        return parts[0] if len(parts) == 1 else backend.concatenate(parts)

    def _project(self, backend: Backend, a: Activations, weights: tuple[Weight, ...]) -> tuple[Array, Array, Array]:
        n_q, n_qk = self.attn_q.n_rows, self.attn_q.n_rows + self.attn_k.n_rows
        bias = self.qkv_bias
        if a.x.shape[0] == 1:  # slices of a single row are contiguous
            row = backend.linear(a, *weights, bias=bias)
            k = row[:, n_q:n_qk]
            return row[:, :n_q], k, row[:, n_qk:] if len(weights) == 3 else backend.concatenate([k])
        parts = (None, None, None) if bias is None else (bias[:n_q], bias[n_q:n_qk], bias[n_qk:])
        rows = [backend.linear(a, weight, bias=part) for weight, part in zip(weights, parts, strict=False)]
        return rows[0], rows[1], rows[2] if len(rows) == 3 else backend.concatenate([rows[1]])


def _query_and_gate(
    source: WeightSource, config: ModelConfig, name: str, width: int, gated: bool
) -> tuple[Weight, Weight | None]:
    """The query matrix; where it is `gated`, the file has rows head by head: a head's query, a head's gate."""
    heads = config.num_heads
    n_q = heads * width
    if not gated:
        return source.matrix(name, n_q, config.hidden_size), None
    both = source.matrix(name, 2 * n_q, config.hidden_size, grouped_rows(heads, (width, width)))
    return rows_of(both, 0, n_q), rows_of(both, n_q, 2 * n_q)


@dataclass(slots=True)
class DenseFFN:
    """The gated feed-forward of a layer without experts."""

    ffn_norm: Array
    ffn_gate: Weight
    ffn_up: Weight
    ffn_down: Weight
    norm_eps: float
    unit: GatedUnit = SILU
    post_ffw_norm: Array | None = None

    @classmethod
    def read(
        cls, source: WeightSource, config: ModelConfig, layer: int, norm: str = "ffn_norm", unit: GatedUnit = SILU
    ) -> DenseFFN:
        """Take the feed-forward tensors of `layer`; `norm` is what the file calls ffn_norm."""
        blk, hidden, width = f"blk.{layer}", config.hidden_size, config.intermediate_size
        return cls(
            ffn_norm=source.vector(f"{blk}.{norm}.weight", hidden),
            ffn_gate=source.matrix(f"{blk}.ffn_gate.weight", width, hidden),
            ffn_up=source.matrix(f"{blk}.ffn_up.weight", width, hidden),
            ffn_down=source.matrix(f"{blk}.ffn_down.weight", hidden, width),
            norm_eps=config.rms_norm_eps,
            unit=unit,
        )

    @property
    def router(self) -> RouterWeights | None:
        """None: there are no experts."""
        return None

    def __call__(self, backend: Backend, x: Array, provider: ExpertProvider) -> Array:
        """`added`: nobody chooses here."""
        return self.added(backend, x)

    def added(self, backend: Backend, x: Array) -> Array:
        """What the feed-forward adds to the residual x [T, D]."""
        a = backend.norm(x, self.ffn_norm, self.norm_eps, readers=(self.ffn_gate, self.ffn_up))
        out = backend.gated_mlp(a, self.ffn_gate, self.ffn_up, self.ffn_down, self.unit)
        return out if self.post_ffw_norm is None else backend.norm(out, self.post_ffw_norm, self.norm_eps).x


class SelfAttention(Protocol):
    """The first half of a block: `Attention`, `models.latent_attention.LatentAttention`, or what stands in its place.

    `kept` is the layer's part of the `KVCache`: a KVLayer, or a RecurrentLayer where that is what the kind keeps.
    """

    def __call__(self, backend: Backend, x: Array, kept: Any, rope: RopeTable, start: int, /) -> Array: ...


class FeedForward(Protocol):
    """The second half of a block: `DenseFFN`, `models.moe.MoE`, or one of an architecture's own. `router` is None where
    it has no experts."""

    @property
    def router(self) -> RouterWeights | None: ...

    def __call__(self, backend: Backend, x: Array, provider: ExpertProvider) -> Array: ...


@dataclass(slots=True)
class Block:
    """One layer: each half adds to the residual stream."""

    attn: SelfAttention
    ffn: FeedForward
    residual_scale: float = 1.0  # on what each half adds
    output_scale: float = 1.0  # on the stream behind this layer

    def __call__(
        self, backend: Backend, x: Array, kept: Any, rope: RopeTable, start: int, provider: ExpertProvider
    ) -> Array:
        """The stream [T, D] after this layer; what it leaves behind goes into `kept`."""
        x = self.attend(backend, x, kept, rope, start)
        return self.leave(x, self.ffn(backend, x, provider))

    def attend(self, backend: Backend, x: Array, kept: Any, rope: RopeTable, start: int) -> Array:
        """The stream behind the first half."""
        return self._add(x, self.attn(backend, x, kept, rope, start))

    def leave(self, x: Array, added: Array) -> Array:
        """The stream behind the second half, which adds `added` to x."""
        x = self._add(x, added)
        if self.output_scale != 1.0:
            x *= self.output_scale
        return x

    def _add(self, x: Array, added: Array) -> Array:
        """x + residual_scale * added in the memory of `added`, which a half has made for this; x stays."""
        if self.residual_scale != 1.0:
            added *= self.residual_scale
        added += x
        return added
