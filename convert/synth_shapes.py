"""The shapes of known Mixture-of-Experts models, as data: what `pearl synth` can imitate. Sizes and rules are those of
each model's published config.json.
"""

from __future__ import annotations

from dataclasses import dataclass

from convert.model_metadata import SIGMOID, SOFTMAX, ConstantFactors, LatentDims, ModelDims, RopeScaling, WindowHeads
from convert.recurrent_shapes import granite_h, qwen_delta_net


@dataclass(frozen=True, slots=True)
class Shape:
    """A model and the kind of its made-up vocabulary: a pre-tokenizer's name, or "spm" for a SentencePiece-style one.
    `tied`: there is no output matrix."""

    dims: ModelDims
    pre_tokenizer: str
    tied: bool = False


def _latent(q_lora_rank: int) -> LatentDims:
    """DeepSeek's head widths, which its relatives keep."""
    return LatentDims(q_lora_rank=q_lora_rank, kv_lora_rank=512, nope_dim=128, rope_dim=64, value_dim=128)


def _deepseek_yarn(mscale: float) -> RopeScaling:
    return RopeScaling("yarn", 40.0, 4096, beta_fast=32.0, beta_slow=1.0, log_multiplier=0.1 * mscale)


def _gpt_oss(num_layers: int, num_experts: int) -> ModelDims:
    """The sizes differ in layers and experts only."""
    return ModelDims(
        architecture="gpt-oss", hidden_size=2880, num_layers=num_layers, num_heads=64, num_kv_heads=8, head_dim=64,
        intermediate_size=2880, moe_intermediate_size=2880, num_experts=num_experts, num_experts_per_tok=4,
        vocab_size=201088, context_length=131072, rope_theta=1.5e5, rms_norm_eps=1e-5, attention_bias=True,
        rope_scaling=RopeScaling("yarn", 32.0, 4096, beta_fast=32.0, beta_slow=1.0), output_bias=True, sinks=True,
        expert_biases=True, sliding_window=128, swiglu_limit=7.0,
    )  # fmt: skip


SHAPES = {
    "olmoe-1b-7b": Shape(
        ModelDims(
            architecture="olmoe", hidden_size=2048, num_layers=16, num_heads=16, num_kv_heads=16, head_dim=128,
            intermediate_size=1024, moe_intermediate_size=1024, num_experts=64, num_experts_per_tok=8,
            vocab_size=50304, context_length=4096, rope_theta=1e4, rms_norm_eps=1e-5, qk_norm="full",
        ),
        "olmo",
    ),
    "qwen3-30b-a3b": Shape(
        ModelDims(
            architecture="qwen3moe", hidden_size=2048, num_layers=48, num_heads=32, num_kv_heads=4, head_dim=128,
            intermediate_size=6144, moe_intermediate_size=768, num_experts=128, num_experts_per_tok=8,
            vocab_size=151936, context_length=40960, rope_theta=1e6, rms_norm_eps=1e-6, qk_norm="head",
        ),
        "qwen2",
    ),
    "mixtral-8x7b": Shape(
        ModelDims(
            architecture="llama", hidden_size=4096, num_layers=32, num_heads=32, num_kv_heads=8, head_dim=128,
            intermediate_size=14336, moe_intermediate_size=14336, num_experts=8, num_experts_per_tok=2,
            vocab_size=32000, context_length=32768, rope_theta=1e6, rms_norm_eps=1e-5,
        ),
        "spm",
    ),
    "qwen1.5-moe-a2.7b": Shape(
        ModelDims(
            architecture="qwen2moe", hidden_size=2048, num_layers=24, num_heads=16, num_kv_heads=16, head_dim=128,
            intermediate_size=5632, moe_intermediate_size=1408, num_experts=60, num_experts_per_tok=4,
            vocab_size=151936, context_length=8192, rope_theta=1e6, rms_norm_eps=1e-6, norm_topk_prob=False,
            attention_bias=True, shared_intermediate_size=5632,
        ),
        "qwen2",
    ),
    "qwen2-57b-a14b": Shape(
        ModelDims(
            architecture="qwen2moe", hidden_size=3584, num_layers=28, num_heads=28, num_kv_heads=4, head_dim=128,
            intermediate_size=18944, moe_intermediate_size=2560, num_experts=64, num_experts_per_tok=8,
            vocab_size=151936, context_length=131072, rope_theta=1e6, rms_norm_eps=1e-6, norm_topk_prob=False,
            attention_bias=True, shared_intermediate_size=20480,
        ),
        "qwen2",
    ),
    "deepseek-v2-lite": Shape(
        ModelDims(
            architecture="deepseek2", hidden_size=2048, num_layers=27, num_heads=16, num_kv_heads=1, head_dim=576,
            intermediate_size=10944, moe_intermediate_size=1408, num_experts=64, num_experts_per_tok=6,
            vocab_size=102400, context_length=163840, rope_theta=1e4, rms_norm_eps=1e-6, norm_topk_prob=False,
            rope_scaling=_deepseek_yarn(0.707), shared_experts=2, leading_dense=1, router_scale=1.0, gating=SOFTMAX,
            latent=_latent(0),
        ),
        "deepseek-llm",
    ),
    "deepseek-v3": Shape(
        ModelDims(
            architecture="deepseek2", hidden_size=7168, num_layers=61, num_heads=128, num_kv_heads=1, head_dim=576,
            intermediate_size=18432, moe_intermediate_size=2048, num_experts=256, num_experts_per_tok=8,
            vocab_size=129280, context_length=163840, rope_theta=1e4, rms_norm_eps=1e-6, norm_topk_prob=True,
            rope_scaling=_deepseek_yarn(1.0), shared_experts=1, leading_dense=3, router_scale=2.5, gating=SIGMOID,
            num_groups=8, num_groups_used=4, latent=_latent(1536),
        ),
        "deepseek-v3",
    ),
    "moonlight-16b-a3b": Shape(
        ModelDims(
            architecture="deepseek2", hidden_size=2048, num_layers=27, num_heads=16, num_kv_heads=1, head_dim=576,
            intermediate_size=11264, moe_intermediate_size=1408, num_experts=64, num_experts_per_tok=6,
            vocab_size=163840, context_length=8192, rope_theta=5e4, rms_norm_eps=1e-5, norm_topk_prob=True,
            shared_experts=2, leading_dense=1, router_scale=2.446, gating=SIGMOID, latent=_latent(0),
        ),
        "gpt-4o",
    ),
    "dots-llm1": Shape(
        ModelDims(
            architecture="dots1", hidden_size=4096, num_layers=62, num_heads=32, num_kv_heads=32, head_dim=128,
            intermediate_size=10944, moe_intermediate_size=1408, num_experts=128, num_experts_per_tok=6,
            vocab_size=152064, context_length=32768, rope_theta=1e7, rms_norm_eps=1e-5, norm_topk_prob=True,
            qk_norm="head", shared_experts=2, leading_dense=1, router_scale=2.5, gating=SIGMOID,
        ),
        "qwen2",
    ),
    "ernie-4.5-21b-a3b": Shape(
        ModelDims(
            architecture="ernie4_5-moe", hidden_size=2560, num_layers=28, num_heads=20, num_kv_heads=4, head_dim=128,
            intermediate_size=12288, moe_intermediate_size=1536, num_experts=64, num_experts_per_tok=6,
            vocab_size=103424, context_length=131072, rope_theta=5e5, rms_norm_eps=1e-5, shared_experts=2,
            shared_intermediate_size=3072, leading_dense=1,
        ),
        "spm", tied=True,
    ),
    "hunyuan-a13b": Shape(
        ModelDims(
            architecture="hunyuan-moe", hidden_size=4096, num_layers=32, num_heads=32, num_kv_heads=8, head_dim=128,
            intermediate_size=3072, moe_intermediate_size=3072, num_experts=64, num_experts_per_tok=8,
            vocab_size=128167, context_length=262144, rope_theta=1e4 * 1000 ** (128 / 126), rms_norm_eps=1e-5,
            qk_norm="head", shared_experts=1, shared_intermediate_size=3072,
        ),
        "hunyuan", tied=True,
    ),
    "k-exaone-236b-a23b": Shape(
        ModelDims(
            architecture="exaone-moe", hidden_size=6144, num_layers=48, num_heads=64, num_kv_heads=8, head_dim=128,
            intermediate_size=18432, moe_intermediate_size=2048, num_experts=128, num_experts_per_tok=8,
            vocab_size=153600, context_length=262144, rope_theta=1e6, rms_norm_eps=1e-5, norm_topk_prob=True,
            qk_norm="head", sliding_window=128, shared_experts=1, leading_dense=1, router_scale=2.5, gating=SIGMOID,
        ),
        "exaone-moe",
    ),
    "hy3-295b-a21b": Shape(
        ModelDims(
            architecture="hy_v3", hidden_size=4096, num_layers=80, num_heads=64, num_kv_heads=8, head_dim=128,
            intermediate_size=13312, moe_intermediate_size=1536, num_experts=192, num_experts_per_tok=8,
            vocab_size=120832, context_length=131072, rope_theta=11158840.0, rms_norm_eps=1e-5, norm_topk_prob=True,
            qk_norm="head", shared_experts=1, shared_intermediate_size=1536, leading_dense=1, router_scale=2.826,
            gating=SIGMOID,
        ),
        "hunyuan-dense",
    ),
    "trinity-mini-26b-a3b": Shape(
        ModelDims(
            architecture="afmoe", hidden_size=2048, num_layers=32, num_heads=32, num_kv_heads=4, head_dim=128,
            intermediate_size=6144, moe_intermediate_size=1024, num_experts=128, num_experts_per_tok=8,
            vocab_size=200192, context_length=131072, rope_theta=1e4, rms_norm_eps=1e-5, norm_topk_prob=True,
            qk_norm="head", sliding_window=2048, shared_experts=1, leading_dense=2, router_scale=2.826,
            gating=SIGMOID, output_gate=True,
        ),
        "afmoe",
    ),
    "mellum2-12b-a2.5b": Shape(
        ModelDims(
            architecture="mellum", hidden_size=2304, num_layers=28, num_heads=32, num_kv_heads=4, head_dim=128,
            intermediate_size=7168, moe_intermediate_size=896, num_experts=64, num_experts_per_tok=8,
            vocab_size=98304, context_length=131072, rope_theta=5e5, rms_norm_eps=1e-6, norm_topk_prob=True,
            qk_norm="head", sliding_window=1024, window_theta=5e5,
            rope_scaling=RopeScaling("yarn", 16.0, 8192, beta_fast=32.0, beta_slow=1.0),
        ),
        "mellum2",
    ),
    "minimax-m2": Shape(
        ModelDims(
            architecture="minimax-m2", hidden_size=3072, num_layers=62, num_heads=48, num_kv_heads=8, head_dim=128,
            intermediate_size=1536, moe_intermediate_size=1536, num_experts=256, num_experts_per_tok=8,
            vocab_size=200064, context_length=196608, rope_theta=5e6, rms_norm_eps=1e-6, norm_topk_prob=True,
            qk_norm="full", n_rot=64, gating=SIGMOID,
        ),
        "minimax-m2",
    ),
    "glm-4.7-flash": Shape(
        ModelDims(
            architecture="deepseek2", hidden_size=2048, num_layers=47, num_heads=20, num_kv_heads=1, head_dim=576,
            intermediate_size=10240, moe_intermediate_size=1536, num_experts=64, num_experts_per_tok=4,
            vocab_size=154880, context_length=202752, rope_theta=1e6, rms_norm_eps=1e-5, norm_topk_prob=True,
            shared_experts=1, leading_dense=1, router_scale=1.8, gating=SIGMOID,
            latent=LatentDims(q_lora_rank=768, kv_lora_rank=512, nope_dim=192, rope_dim=64, value_dim=256),
        ),
        "glm4",
    ),
    "glm-4.5-air": Shape(
        ModelDims(
            architecture="glm4moe", hidden_size=4096, num_layers=46, num_heads=96, num_kv_heads=8, head_dim=128,
            intermediate_size=10944, moe_intermediate_size=1408, num_experts=128, num_experts_per_tok=8,
            vocab_size=151552, context_length=131072, rope_theta=1e6, rms_norm_eps=1e-5, norm_topk_prob=True,
            attention_bias=True, n_rot=64, shared_experts=1, leading_dense=1, router_scale=1.0, gating=SIGMOID,
        ),
        "glm4",
    ),
    "gemma-4-26b-a4b": Shape(
        ModelDims(
            architecture="gemma4", hidden_size=2816, num_layers=30, num_heads=16, num_kv_heads=2, head_dim=512,
            intermediate_size=2112, moe_intermediate_size=704, num_experts=128, num_experts_per_tok=8,
            vocab_size=262144, context_length=262144, rope_theta=1e6, rms_norm_eps=1e-6, qk_norm="head",
            rope_scaling=RopeScaling("proportional", 1.0, tensors={"rope_freqs.weight": (1.0,) * 64 + (1e30,) * 192}),
            sliding_window=1024, window_layers=tuple((layer + 1) % 6 != 0 for layer in range(30)),
            window_heads=WindowHeads(num_kv_heads=8, head_dim=256, rope_theta=1e4), shares_values=True,
            logit_softcap=30.0,
        ),
        "spm",
        tied=True,
    ),
    # Without its longrope: the lists of divisors say nothing about speed.
    "phi-3.5-moe": Shape(
        ModelDims(
            architecture="phimoe", hidden_size=4096, num_layers=32, num_heads=32, num_kv_heads=8, head_dim=128,
            intermediate_size=6400, moe_intermediate_size=6400, num_experts=16, num_experts_per_tok=2,
            vocab_size=32064, context_length=131072, rope_theta=1e4, rms_norm_eps=1e-5, attention_bias=True,
            output_bias=True, norm_biases=True, logit_bias=True,
        ),
        "spm",
    ),
    "gpt-oss-20b": Shape(_gpt_oss(24, 32), "gpt-4o"),
    "gpt-oss-120b": Shape(_gpt_oss(36, 128), "gpt-4o"),
    "lfm2-8b-a1b": Shape(
        ModelDims(
            architecture="lfm2moe", hidden_size=2048, num_layers=24, num_heads=32, num_kv_heads=8, head_dim=64,
            intermediate_size=7168, moe_intermediate_size=1792, num_experts=32, num_experts_per_tok=4,
            vocab_size=65536, context_length=128000, rope_theta=1e6, rms_norm_eps=1e-5, norm_topk_prob=True,
            qk_norm="head", leading_dense=2, router_scale=1.0, gating=SIGMOID, conv_kernel=3,
            conv_layers=tuple(layer not in (2, 6, 10, 14, 18, 21) for layer in range(24)),
        ),
        "lfm2",
        tied=True,
    ),
    "qwen3-vl-30b-a3b": Shape(
        ModelDims(
            architecture="qwen3vlmoe", hidden_size=2048, num_layers=48, num_heads=32, num_kv_heads=4, head_dim=128,
            intermediate_size=6144, moe_intermediate_size=768, num_experts=128, num_experts_per_tok=8,
            vocab_size=151936, context_length=262144, rope_theta=5e6, rms_norm_eps=1e-6, norm_topk_prob=True,
            qk_norm="head", rope_sections=(24, 20, 20, 0), deepstack_layers=3,
        ),
        "qwen2",
    ),
    "qwen3-next-80b-a3b": Shape(
        ModelDims(
            architecture="qwen3next", hidden_size=2048, num_layers=48, num_heads=16, num_kv_heads=2, head_dim=256,
            intermediate_size=5120, moe_intermediate_size=512, num_experts=512, num_experts_per_tok=10,
            vocab_size=151936, context_length=262144, rope_theta=1e7, rms_norm_eps=1e-6, norm_topk_prob=True,
            qk_norm="head", n_rot=64, shared_intermediate_size=512, delta_net=qwen_delta_net(48),
        ),
        "qwen2",
    ),
    "qwen3.6-35b-a3b": Shape(
        ModelDims(
            architecture="qwen35moe", hidden_size=2048, num_layers=40, num_heads=16, num_kv_heads=2, head_dim=256,
            intermediate_size=0, moe_intermediate_size=512, num_experts=256, num_experts_per_tok=8,
            vocab_size=248320, context_length=262144, rope_theta=1e7, rms_norm_eps=1e-6, qk_norm="head", n_rot=64,
            shared_intermediate_size=512, delta_net=qwen_delta_net(40), rope_sections=(11, 11, 10, 0),
        ),
        "qwen35",
    ),
    "granite-3.1-3b-a800m": Shape(
        ModelDims(
            architecture="granitemoe", hidden_size=1536, num_layers=32, num_heads=24, num_kv_heads=8, head_dim=64,
            intermediate_size=512, moe_intermediate_size=512, num_experts=40, num_experts_per_tok=8,
            vocab_size=49155, context_length=131072, rope_theta=1e7, rms_norm_eps=1e-6,
            factors=ConstantFactors(attention=0.015625, embedding=12.0, residual=0.22, logits=6.0),
        ),
        "refact",
        tied=True,
    ),
    "granite-4.0-h-tiny": Shape(granite_h(1536, 12, 4, 512, 64, 6, logits=6.0), "dbrx", tied=True),
    "granite-4.0-h-small": Shape(granite_h(4096, 32, 8, 768, 72, 10, logits=16.0), "dbrx", tied=True),
}  # fmt: skip
