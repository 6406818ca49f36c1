"""`Model`: embedding, blocks, last norm and output of any architecture, and the forward call over them.

It keeps no sequence: positions, keys and values are the `KVCache`'s; which experts are in memory is the provider's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from kernels.backend import Array, Backend, Weight
from models.config import ModelConfig
from models.expert_provider import ExpertProvider, RouterWeights
from models.kv_cache import KVCache
from models.layers import Block
from models.stream_norm import normed
from models.weights import WeightSource


@dataclass(slots=True)
class Model:
    """Weights on `backend`'s device; `output` is `token_embd` itself where the file ties the two."""

    config: ModelConfig
    backend: Backend
    token_embd: Weight
    blk: list[Block]
    output_norm: Array
    output: Weight
    rope_freqs: np.ndarray | None = None
    output_norm_b: Array | None = None  # then the norm takes the mean off, and adds this
    output_b: Array | None = None
    rope_factors: tuple[np.ndarray, np.ndarray] | None = None  # short, long: like rope_freqs, by the context's length

    @classmethod
    def read(
        cls, source: WeightSource, config: ModelConfig, blk: list[Block], output_norm: str = "output_norm"
    ) -> Model:
        """Take the tensors outside the blocks; `output.weight` falls back to `token_embd.weight`, stored once.

        `output_norm` is what the file calls the norm before the output.
        """
        vocab, hidden = config.vocab_size, config.hidden_size
        token_embd = source.matrix("token_embd.weight", vocab, hidden)
        has_output = source.has("output.weight")
        factors = config.rope.n_rot // 2
        return cls(
            config=config,
            backend=source.backend,
            token_embd=token_embd,
            blk=blk,
            output_norm=source.vector(f"{output_norm}.weight", hidden),
            output=source.matrix("output.weight", vocab, hidden) if has_output else token_embd,
            rope_freqs=source.host_vector("rope_freqs.weight", factors) if source.has("rope_freqs.weight") else None,
            output_norm_b=source.vector(f"{output_norm}.bias", hidden) if source.has(f"{output_norm}.bias") else None,
            output_b=source.vector("output.bias", vocab) if source.has("output.bias") else None,
            rope_factors=_rope_factors(source, factors),
        )

    @property
    def routers(self) -> list[RouterWeights | None]:
        """The router of each layer, None for a layer without experts."""
        return [block.ffn.router for block in self.blk]

    def new_cache(self, capacity: int, k_dtype: str = "f16", v_dtype: str = "f16") -> KVCache:
        """An empty cache for `capacity` positions. Raises UsageError for a type or pair of types that cannot be
        stored.
        """
        divisors = self.rope_freqs
        if self.rope_factors is not None:
            divisors = self.rope_factors[capacity > self.config.rope.original_context]
        return KVCache(self.config, self.backend, capacity, k_dtype, v_dtype, divisors)

    def forward(
        self,
        token_ids: np.ndarray,
        cache: KVCache,
        provider: ExpertProvider,
        phase: str,
        logits: str = "last",
        after_layer: Callable[[int], None] | None = None,
    ) -> np.ndarray | None:
        """Append token_ids int64 [T] at position `cache.length`; advances `cache.length` by T only on success.

        `phase` is "prefill" or "decode", handed to the provider. Returns float32 host logits: [V] of the last token for
        logits="last", [T, V] for "all", None for "none". after_layer(n) is told when n layers are
        done. Raises ValueError for no token, or more than the cache has room for.
        """
        n_tokens, start = token_ids.shape[0], cache.length
        if n_tokens == 0:
            raise ValueError("forward needs at least one token")
        cache.begin(n_tokens)
        provider.begin(token_ids, start, phase)
        try:
            x = self.backend.embed(self.token_embd, token_ids)
            if self.config.embedding_scale != 1.0:
                x *= self.config.embedding_scale
            for n, (block, kv, rope) in enumerate(zip(self.blk, cache.layers, cache.ropes, strict=True), 1):
                x = block(self.backend, x, kv, rope, start, provider)
                if after_layer is not None:
                    after_layer(n)
            result = self._logits(x, logits)
        finally:
            provider.end()
        cache.length = start + n_tokens
        return result

    def _logits(self, x: Array, which: str) -> np.ndarray | None:
        if which == "none":
            return None
        if which not in ("last", "all"):
            raise ValueError(f"logits {which!r}; there are last, all, none")
        rows = x[-1:] if which == "last" else x
        backend, eps = self.backend, self.config.rms_norm_eps
        a = normed(backend, rows, self.output_norm, self.output_norm_b, eps, (self.output,))
        out = backend.to_host(backend.linear(a, self.output, bias=self.output_b))
        if self.config.logit_divisor != 1.0:
            out /= np.float32(self.config.logit_divisor)
        if self.config.logit_softcap:
            cap = np.float32(self.config.logit_softcap)
            out /= cap
            np.tanh(out, out=out)
            out *= cap
        return out[0] if which == "last" else out


def _rope_factors(source: WeightSource, size: int) -> tuple[np.ndarray, np.ndarray] | None:
    """Divisors for contexts up to the original one, and for longer ones."""
    if not source.has("rope_factors_long.weight"):
        return None
    short, long = (source.host_vector(f"rope_factors_{kind}.weight", size) for kind in ("short", "long"))
    return short, long
