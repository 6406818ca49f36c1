"""The feed-forward half of a Gemma 4 layer with experts: a dense one and the experts side by side on the same stream,
each with norms of its own before and behind, and a norm over their sum.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from kernels.backend import Activations, Array, Backend, GatedUnit
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
        return self.choose(backend, x, *self.inputs(backend, x), provider)

    def inputs(self, backend: Backend, x: Array) -> tuple[Activations, Array, Array, Activations]:
        """All that comes before the choice: the router's rows and logits [T, E], what the dense half makes of x [T, D],
        and the experts' rows.
        """
        router, eps = self.router, self.router.norm_eps
        dense = backend.norm(self.dense.added(backend, x), self.post_ffw_norm_1, eps).x
        seen = router.normed(backend, x)
        return seen, router.logits(backend, seen), dense, backend.norm(x, self.pre_ffw_norm_2, eps)

    def choose(
        self, backend: Backend, x: Array, seen: Activations, router_logits: Array, dense: Array, a: Activations,
        provider: ExpertProvider,
    ) -> Array:  # fmt: skip
        """The rest: `provider` chooses and computes."""
        router, eps = self.router, self.router.norm_eps
        routing = provider.select(router.layer, x, seen, router_logits)
        routing.topk_weights = routing.topk_weights * self.ffn_down_exps_scale[routing.topk_ids]
        experts = backend.norm(provider.compute(router.layer, a, routing), self.post_ffw_norm_2, eps).x
        experts += dense
        return backend.norm(experts, self.post_ffw_norm, eps).x
