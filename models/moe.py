"""The Mixture-of-Experts half of a block: norm and router here; who computes the experts is the provider's business."""

from __future__ import annotations

from dataclasses import dataclass

from kernels.backend import SILU, Activations, Array, Backend, ExpertBiases, GatedUnit, NotNumbersError
from models.config import ModelConfig
from models.errors import PearlError
from models.expert_provider import ExpertProvider, RouterWeights
from models.shared_expert import SharedExpert
from models.weights import WeightSource

_BIAS_NAMES = ("exp_probs_b.bias", "exp_probs_b", "exp_probs_b.weight")  # files of all three spellings are about


@dataclass(slots=True)
class MoE:
    """`router` holds ffn_norm, ffn_gate_inp and, where the file has them, exp_probs_b and the experts' biases."""

    router: RouterWeights
    shared: SharedExpert | None = None
    post_ffw_norm: Array | None = None  # behind both

    @classmethod
    def read(
        cls,
        source: WeightSource,
        config: ModelConfig,
        layer: int,
        shared: SharedExpert | None = None,
        norm: str = "ffn_norm",
        unit: GatedUnit = SILU,
        biased: bool = False,
    ) -> MoE:
        """Take the router's tensors of `layer`; the routed experts' matrices stay in the file.

        `norm` is what the file calls ffn_norm; `biased`: the file must hold biases of the router and of the experts.
        """
        blk, hidden, num_experts = f"blk.{layer}", config.hidden_size, config.router.num_experts
        bias = next((name for name in _BIAS_NAMES if source.has(f"{blk}.{name}")), None)
        router = RouterWeights(
            layer=layer,
            spec=config.router,
            ffn_norm=source.vector(f"{blk}.{norm}.weight", hidden),
            norm_eps=config.rms_norm_eps,
            ffn_gate_inp=source.matrix(f"{blk}.ffn_gate_inp.weight", num_experts, hidden),
            exp_probs_b=source.vector(f"{blk}.{bias}", num_experts) if bias else None,
            ffn_gate_inp_b=source.vector(f"{blk}.ffn_gate_inp.bias", num_experts) if biased else None,
            ffn_norm_b=source.vector(f"{blk}.{norm}.bias", hidden) if source.has(f"{blk}.{norm}.bias") else None,
            unit=unit,
            biases=_biases(source, config, blk) if biased else None,
        )
        return cls(router, shared)

    def __call__(self, backend: Backend, x: Array, provider: ExpertProvider) -> Array:
        """What the chosen experts, and the shared one, add to the residual x [T, D]."""
        return self.choose(backend, x, *self.inputs(backend, x), provider)

    def inputs(self, backend: Backend, x: Array) -> tuple[Activations, Array]:
        """The normed rows and the router's logits [T, E]: all that comes before the choice."""
        a = self.router.normed(backend, x)
        return a, self.router.logits(backend, a)

    def choose(
        self, backend: Backend, x: Array, a: Activations, router_logits: Array, provider: ExpertProvider
    ) -> Array:
        """The rest: `provider` chooses and computes. Raises PearlError where there are no numbers to choose by."""
        layer = self.router.layer
        try:
            routing = provider.select(layer, x, a, router_logits)
        except NotNumbersError as error:
            before = f"layer {layer - 1} or " if layer else ""
            raise PearlError(
                f"{before}the attention of layer {layer} produced NaN: weights or activations overflow; check the file "
                "(pearl info) or convert it again with a wider type (bf16, f32)"
            ) from error
        if self.shared is None:
            added = provider.compute(layer, a, routing)
        else:
            added = self.shared(backend, a)
            added += provider.compute(layer, a, routing)
        return added if self.post_ffw_norm is None else backend.norm(added, self.post_ffw_norm, self.router.norm_eps).x


def _biases(source: WeightSource, config: ModelConfig, blk: str) -> ExpertBiases:
    num_experts, width = config.router.num_experts, config.moe_intermediate_size
    rows = {"gate": width, "up": width, "down": config.hidden_size}
    tables = {name: source.table(f"{blk}.ffn_{name}_exps.bias", num_experts, n) for name, n in rows.items()}
    return ExpertBiases(**tables)
