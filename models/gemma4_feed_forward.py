"""The feed-forward half of a Gemma 4 layer with experts: a dense one and the experts side by side on the same stream,
each with norms of its own before and behind, and a norm over their sum.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from kernels.backend import Array, Backend, GatedUnit
from models.config import ModelConfig
from models.expert_provider import ExpertProvider, RouterWeights
from models.layers import DenseFFN
from models.moe import MoE
from models.weights import WeightSource

GELU = GatedUnit("gelu")


@dataclass(slots=True)
class GemmaFeedForward:
    """`router.ffn_norm` is the file's ffn_gate_inp.scale / sqrt(D): the router has a norm of its own, without a weight.
    ffn_down_exps_scale: host float32 [E], on the experts' mixing weights.
    """

    dense: DenseFFN
    router: RouterWeights
    ffn_down_exps_scale: np.ndarray
    pre_ffw_norm_2: Array
    post_ffw_norm_1: Array
    post_ffw_norm_2: Array
    post_ffw_norm: Array

    @classmethod
    def read(cls, source: WeightSource, config: ModelConfig, layer: int) -> GemmaFeedForward:
        """Take the tensors of `layer`; the experts' own stay in the file. Raises GGUFError for a missing or misshapen
        one.
        """
        blk, hidden = f"blk.{layer}", config.hidden_size
        router = MoE.read(source, config, layer, norm="pre_ffw_norm_2", unit=GELU).router
        scale = source.host_vector(f"{blk}.ffn_gate_inp.scale", hidden) * np.float32(hidden**-0.5)
        return cls(
            dense=DenseFFN.read(source, config, layer, unit=GELU),
            router=replace(router, ffn_norm=source.backend.from_host(scale)),
            ffn_down_exps_scale=source.host_vector(f"{blk}.ffn_down_exps.scale", config.router.num_experts),
            pre_ffw_norm_2=router.ffn_norm,
            post_ffw_norm_1=source.vector(f"{blk}.post_ffw_norm_1.weight", hidden),
            post_ffw_norm_2=source.vector(f"{blk}.post_ffw_norm_2.weight", hidden),
            post_ffw_norm=source.vector(f"{blk}.post_ffw_norm.weight", hidden),
        )

    def __call__(self, backend: Backend, x: Array, provider: ExpertProvider) -> Array:
        """What both feed-forwards add to the residual x [T, D]."""
        router, eps = self.router, self.router.norm_eps
        dense = backend.norm(self.dense(backend, x, provider), self.post_ffw_norm_1, eps).x
        seen = router.normed(backend, x)
        routing = provider.select(router.layer, x, seen, router.logits(backend, seen))
        routing.topk_weights = routing.topk_weights * self.ffn_down_exps_scale[routing.topk_ids]
        a = backend.norm(x, self.pre_ffw_norm_2, eps)
        experts = backend.norm(provider.compute(router.layer, a, routing), self.post_ffw_norm_2, eps).x
        return backend.norm(dense + experts, self.post_ffw_norm, eps).x
