"""Test brick: the tiny models that `test_architectures` runs, at least one of every architecture, with the fields and
keys that change what is computed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.tiny_models import FAMILIES


@dataclass(frozen=True)
class Case:
    """`fields` go into the transformers config, `keys` into the file's metadata; `expanded`: see `write_gguf`."""

    family: str
    fields: dict[str, Any] = field(default_factory=dict)
    keys: dict[str, Any] = field(default_factory=dict)
    expanded: bool = False


def yarn(factor: float, original: int, **more: float) -> dict[str, Any]:
    parameters = {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original, **more}
    return {"rope_parameters": {"rope_theta": 10000.0, **parameters}}


PHI_ROPE = FAMILIES["phimoe"][2]["rope_parameters"]
LLAMA3 = {
    "rope_parameters": {
        "rope_theta": 10000.0,
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16,
    }
}


def scaling_keys(architecture: str, kind: str, factor: float, original: int | None = None) -> dict[str, Any]:
    keys = {f"{architecture}.rope.scaling.type": kind, f"{architecture}.rope.scaling.factor": factor}
    return keys if original is None else {**keys, f"{architecture}.rope.scaling.original_context_length": original}


CASES = {
    "afmoe": Case("afmoe"),
    "afmoe_one_expert": Case("afmoe", {"num_experts_per_tok": 1, "num_dense_layers": 0, "num_key_value_heads": 1}),
    "afmoe_all_experts": Case(
        "afmoe",
        {"num_hidden_layers": 5, "num_experts_per_tok": 5, "tie_word_embeddings": True},
        {"afmoe.attention.sliding_window_pattern": [True, True, True, False, True]},
    ),
    "olmoe": Case("olmoe"),
    "olmoe_one_expert": Case("olmoe", {"num_experts_per_tok": 1}),
    "olmoe_all_experts": Case("olmoe", {"num_experts_per_tok": 7}),
    "olmoe_normalised": Case("olmoe", {"norm_topk_prob": True}, {"olmoe.expert_weights_norm": True}),
    "olmoe_tied": Case("olmoe", {"tie_word_embeddings": True}),
    "olmoe_narrow_heads": Case("olmoe", {"num_attention_heads": 8, "num_key_value_heads": 8}),
    "qwen3moe": Case("qwen3moe"),
    "qwen3moe_one_expert": Case("qwen3moe", {"num_experts_per_tok": 1}),
    "qwen3moe_all_experts": Case("qwen3moe", {"num_experts_per_tok": 5}),
    "qwen3moe_not_normalised": Case("qwen3moe", {"norm_topk_prob": False}, {"qwen3moe.expert_weights_norm": False}),
    "qwen3moe_one_kv_head": Case("qwen3moe", {"num_key_value_heads": 1}),
    "qwen3moe_yarn": Case("qwen3moe", yarn(4.0, 16), scaling_keys("qwen3moe", "yarn", 4.0, 16)),
    "qwen2moe": Case("qwen2moe"),
    "qwen2moe_one_expert_normalised": Case(
        "qwen2moe", {"num_experts_per_tok": 1, "norm_topk_prob": True}, {"qwen2moe.expert_weights_norm": True}
    ),
    "qwen2moe_all_experts": Case("qwen2moe", {"num_experts_per_tok": 5, "num_key_value_heads": 1}),
    "deepseek2": Case("deepseek2"),
    "deepseek2_expanded": Case("deepseek2", expanded=True),
    "deepseek2_no_groups": Case("deepseek2", {"topk_method": "greedy", "n_group": None, "topk_group": None}),
    "deepseek2_one_expert": Case("deepseek2", {"num_experts_per_tok": 1}),
    "deepseek2_all_experts": Case(
        "deepseek2",
        {
            "n_routed_experts": 5,
            "num_experts_per_tok": 5,
            "n_group": None,
            "topk_group": None,
            "topk_method": "greedy",
        },
    ),
    "deepseek2_compressed_queries": Case("deepseek2", {"q_lora_rank": 40, "first_k_dense_replace": 0}),
    "deepseek2_yarn": Case(
        "deepseek2",
        yarn(4.0, 16, mscale=0.707, mscale_all_dim=0.707),
        {
            **scaling_keys("deepseek2", "yarn", 4.0, 16),
            "deepseek2.rope.scaling.yarn_log_multiplier": 0.0707,
        },
    ),
    "deepseek2_v3": Case("deepseek2_v3"),
    "deepseek2_v3_yarn": Case(
        "deepseek2_v3",
        yarn(4.0, 16, mscale=1.0, mscale_all_dim=1.0),
        {**scaling_keys("deepseek2", "yarn", 4.0, 16), "deepseek2.rope.scaling.yarn_log_multiplier": 0.1},
    ),
    "deepseek2_v3_stated_gating": Case("deepseek2_v3", keys={"deepseek2.expert_gating_func": 2}),
    "deepseek2_v3_expanded": Case("deepseek2_v3", expanded=True),
    "deepseek2_v3_one_expert": Case("deepseek2_v3", {"num_experts_per_tok": 1, "first_k_dense_replace": 2}),
    "deepseek2_v3_all_experts": Case("deepseek2_v3", {"num_experts_per_tok": 6, "n_group": 1, "topk_group": 1}),
    "deepseek2_v3_not_normalised": Case("deepseek2_v3", {"norm_topk_prob": False}),
    "deepseek2_lite": Case("deepseek2_lite"),
    "deepseek2_lite_two_dense": Case(
        "deepseek2_lite", {"mlp_layer_types": ["dense", "dense", "sparse"], "num_experts_per_tok": 1}
    ),
    "dots1": Case("dots1"),
    "dots1_no_groups": Case(
        "dots1", {"n_routed_experts": 5, "num_experts_per_tok": 5, "n_group": 1, "topk_group": 1, "head_dim": 16}
    ),
    "dots1_one_expert": Case(
        "dots1", {"num_experts_per_tok": 1, "num_key_value_heads": 1, "norm_topk_prob": False, "n_shared_experts": 1}
    ),
    "dots1_yarn": Case("dots1", yarn(4.0, 16), scaling_keys("dots1", "yarn", 4.0, 16)),
    "ernie4_5_moe": Case("ernie4_5-moe"),
    "ernie4_5_moe_one_expert": Case(
        "ernie4_5-moe", {"moe_k": 1, "moe_layer_start_index": 0, "num_key_value_heads": 1, "intermediate_size": 80}
    ),
    "ernie4_5_moe_all_experts": Case("ernie4_5-moe", {"moe_k": 5, "moe_num_shared_experts": 0}),
    "ernie4_5_moe_width_by_count": Case(
        "ernie4_5-moe", {"tie_word_embeddings": True}, {"ernie4_5-moe.expert_shared_feed_forward_length": None}
    ),
    "ernie4_5_moe_yarn": Case("ernie4_5-moe", yarn(4.0, 16), scaling_keys("ernie4_5-moe", "yarn", 4.0, 16)),
    "exaone_moe": Case("exaone-moe"),
    "exaone_moe_usual_layers": Case(
        "exaone-moe",
        {"num_experts_per_tok": 1, "n_group": 1, "topk_group": 1, "norm_topk_prob": False, "first_k_dense_replace": 0},
        {"exaone-moe.attention.sliding_window_pattern": None},
    ),
    "exaone_moe_all_experts": Case(
        "exaone-moe", {"num_hidden_layers": 3, "num_experts_per_tok": 6, "n_group": 1, "topk_group": 1}
    ),
    "gemma4": Case("gemma4"),
    "gemma4_own_values": Case("gemma4", {"attention_k_eq_v": False, "final_logit_softcapping": None}),
    "gemma4_one_expert": Case("gemma4", {"top_k_experts": 1, "layer_types": ["full_attention"] * 4}),
    "gemma4_all_experts": Case("gemma4", {"top_k_experts": 5, "num_key_value_heads": 4}),
    "glm4moe": Case("glm4moe"),
    "glm4moe_yarn": Case(
        "glm4moe",
        {"rope_parameters": {**yarn(4.0, 16)["rope_parameters"], "partial_rotary_factor": 0.5}},
        scaling_keys("glm4moe", "yarn", 4.0, 16),
    ),
    "glm4moe_plain_attention": Case("glm4moe", {"attention_bias": False, "use_qk_norm": False}),
    "glm4moe_one_expert": Case("glm4moe", {"num_experts_per_tok": 1}),
    "glm4moe_all_experts": Case("glm4moe", {"num_experts_per_tok": 5, "first_k_dense_replace": 0}),
    "glm4moe_sections": Case("glm4moe", {}, {"glm4moe.rope.dimension_sections": [2, 2, 2, 0]}),
    "gpt_oss": Case("gpt-oss"),
    "gpt_oss_one_expert": Case("gpt-oss", {"num_experts_per_tok": 1, "sliding_window": 1}),
    "gpt_oss_all_experts": Case("gpt-oss", {"num_experts_per_tok": 5, "num_key_value_heads": 1}),
    "gpt_oss_stated_pattern": Case(
        "gpt-oss",
        {"layer_types": ["full_attention", "full_attention", "sliding_attention"], "swiglu_limit": 0.5},
        {"gpt-oss.attention.sliding_window_pattern": [False, False, True], "gpt-oss.swiglu_clamp_exp": 0.5},
    ),
    "gpt_oss_not_scaled": Case("gpt-oss", {"rope_parameters": {"rope_theta": 150000.0, "rope_type": "default"}}),
    "granitemoe": Case("granitemoe"),
    "granitemoe_shared": Case("granitemoe_shared", {"tie_word_embeddings": True}),
    "granitemoe_one_expert": Case("granitemoe", {"num_experts_per_tok": 1}),
    "granitemoe_all_experts": Case("granitemoe_shared", {"num_experts_per_tok": 5}),
    "granitehybrid": Case("granitehybrid"),
    "granitehybrid_one_group_and_expert": Case(
        "granitehybrid", {"mamba_n_groups": 1, "num_experts_per_tok": 1, "mamba_conv_bias": False, "mamba_d_conv": 2}
    ),
    "granitehybrid_all_experts": Case(
        "granitehybrid",
        {"num_experts_per_tok": 5, "tie_word_embeddings": True, "mamba_n_heads": 16, "mamba_n_groups": 4},
    ),
    "granitehybrid_with_positions": Case(
        "granitehybrid",
        {"position_embedding_type": "rope", "layer_types": ["full_attention", "linear_attention"] * 2},
        {"granitehybrid.rope.scaling.finetuned": None},
    ),
    "granitehybrid_attention_only": Case("granitehybrid", {"layer_types": ["full_attention"] * 4}),
    "hy3": Case("hy_v3"),
    "hy3_all_dense_but_one": Case(
        "hy_v3", {"mlp_layer_types": ["dense", "dense", "sparse"], "num_experts_per_tok": 1, "num_shared_experts": 1}
    ),
    "hy3_no_dense_layer": Case(
        "hy_v3",
        {"mlp_layer_types": ["sparse"] * 3, "num_experts_per_tok": 5, "num_shared_experts": 1},
        {"hy_v3.expert_shared_feed_forward_length": None},
    ),
    "hunyuan_moe": Case("hunyuan-moe"),
    "hunyuan_moe_one_expert": Case(
        "hunyuan-moe",
        {"moe_topk": 1, "num_key_value_heads": 1, "rope_parameters": yarn(4.0, 16)["rope_parameters"]},
        scaling_keys("hunyuan-moe", "yarn", 4.0, 16),
    ),
    "hunyuan_moe_all_experts": Case(
        "hunyuan-moe",
        {"moe_topk": [5, 5], "tie_word_embeddings": True},
        {"hunyuan-moe.expert_shared_feed_forward_length": None, "hunyuan-moe.expert_shared_count": None},
    ),
    "mellum": Case("mellum"),
    "mellum_usual_layers": Case(
        "mellum",
        {
            "num_hidden_layers": 4,
            "layer_types": [*["sliding_attention"] * 3, "full_attention"],
            "num_experts_per_tok": 1,
        },
        {"mellum.attention.sliding_window_pattern": None},
    ),
    "mellum_one_base": Case(
        "mellum",
        {
            "rope_parameters": {
                "full_attention": {"rope_type": "default", "rope_theta": 500.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
            },
        },
        {"mellum.rope.freq_base_swa": None},
    ),
    "minimax_m2": Case("minimax-m2"),
    "minimax_m2_one_expert": Case("minimax-m2", {"num_experts_per_tok": 1, "num_key_value_heads": 1}),
    "minimax_m2_all_experts": Case("minimax-m2", {"num_experts_per_tok": 5, "num_key_value_heads": 4}),
    "minimax_m2_yarn": Case(
        "minimax-m2",
        {"rope_parameters": {**yarn(4.0, 16)["rope_parameters"], "partial_rotary_factor": 0.5}},
        scaling_keys("minimax-m2", "yarn", 4.0, 16),
    ),
    "qwen3next": Case("qwen3next"),
    "qwen3next_yarn": Case(
        "qwen3next",
        {"rope_parameters": {**yarn(4.0, 16)["rope_parameters"], "partial_rotary_factor": 0.5}},
        scaling_keys("qwen3next", "yarn", 4.0, 16),
    ),
    "qwen3next_older_layout": Case("qwen3next", expanded=True),
    "qwen3next_every_second": Case(
        "qwen3next",
        {"layer_types": ["linear_attention", "full_attention"] * 2, "linear_conv_kernel_dim": 2},
        {"qwen3next.attention.recurrent_layers": None, "qwen3next.full_attention_interval": 2},
    ),
    "qwen3next_one_key_head": Case(
        "qwen3next",
        {"linear_num_key_heads": 1, "linear_num_value_heads": 3, "num_experts_per_tok": 1},
    ),
    "qwen3next_wide_values": Case(
        "qwen3next",
        {"linear_num_key_heads": 3, "linear_num_value_heads": 6, "linear_value_head_dim": 24, "num_experts_per_tok": 5},
    ),
    "qwen3next_not_normalised": Case(
        "qwen3next",
        {"norm_topk_prob": False, "linear_num_key_heads": 4, "num_key_value_heads": 1},
        {"qwen3next.expert_weights_norm": False},
    ),
    "qwen3vlmoe": Case("qwen3vlmoe"),
    "qwen3vlmoe_all_experts": Case("qwen3vlmoe", {"num_experts_per_tok": 5, "tie_word_embeddings": True}),
    "qwen35moe": Case("qwen35moe"),
    "qwen35moe_one_expert": Case(
        "qwen35moe", {"num_experts_per_tok": 1, "linear_num_key_heads": 3, "linear_num_value_heads": 9}
    ),
    "qwen35moe_all_experts": Case(
        "qwen35moe", {"num_experts_per_tok": 5, "linear_num_key_heads": 4, "tie_word_embeddings": True}
    ),
    "qwen35moe_older_keys": Case(
        "qwen35moe",
        {"layer_types": ["linear_attention"] * 3 + ["full_attention"], "linear_conv_kernel_dim": 5},
        {"qwen35moe.attention.recurrent_layers": None, "qwen35moe.full_attention_interval": None},
    ),
    "lfm2moe": Case("lfm2moe"),
    "lfm2moe_one_expert": Case("lfm2moe", {"num_experts_per_tok": 1, "norm_topk_prob": False, "conv_L_cache": 2}),
    "lfm2moe_all_experts": Case("lfm2moe", {"num_experts_per_tok": 5, "num_dense_layers": 0}),
    "lfm2moe_attention_only": Case("lfm2moe", {"layer_types": ["full_attention"] * 4}),
    "phimoe": Case("phimoe"),
    "phimoe_within_the_original_context": Case(
        "phimoe", {"rope_parameters": {**PHI_ROPE, "original_max_position_embeddings": 64}}
    ),
    "phimoe_plain": Case(
        "phimoe",
        {
            "attention_bias": False,
            "lm_head_bias": False,
            "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
        },
    ),
    "phimoe_two_experts": Case("phimoe", {"num_local_experts": 2, "num_key_value_heads": 1}),
    "llama": Case("llama"),
    "llama_one_expert": Case("llama", {"num_experts_per_tok": 1}),
    "llama_all_experts": Case("llama", {"num_experts_per_tok": 5}),
    "llama_no_sharing": Case("llama", {"num_key_value_heads": 4}),
    "llama_window": Case("llama", {"sliding_window": 6}, {"llama.attention.sliding_window": 6}),
    "llama_linear": Case(
        "llama",
        {"rope_parameters": {"rope_theta": 1e6, "rope_type": "linear", "factor": 4.0}},
        scaling_keys("llama", "linear", 4.0),
    ),
    "llama_llama3": Case("llama", LLAMA3),
    "granitemoe_llama3": Case("granitemoe", LLAMA3),
    "exaone_moe_llama3": Case("exaone-moe", LLAMA3),
}
