"""Tiny random transformers models and the stock GGUF files of them: the oracle of the architectures.

`write_gguf` goes through gguf-py's `GGUFWriter`, a path of its own beside pearl's converter: names, permutation and
metadata are those of llama.cpp's converter, experts stacked. Every weight is random, norm weights too.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers

from models.config_table import ARCHITECTURES
from tests import tiny_hybrid, tiny_mamba, tiny_others, tiny_seeing, tiny_sigmoid, tiny_softmax

VOCAB = 97
COMMON = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": None,
    "eos_token_id": 1,
    "pad_token_id": None,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}
LATENT = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 24,
    "moe_intermediate_size": 32,
    "intermediate_size": 80,
    "first_k_dense_replace": 1,
    "num_hidden_layers": 3,
    "rms_norm_eps": 1e-6,
}
GRANITE_FACTORS = {
    "embedding_multiplier": 6.0,
    "attention_multiplier": 0.1,
    "residual_multiplier": 0.4,
    "logits_scaling": 3.0,
}
FAMILIES: dict[str, tuple[type, type, dict[str, Any]]] = {
    "olmoe": (
        transformers.OlmoeConfig,
        transformers.OlmoeForCausalLM,
        {"num_experts": 7, "num_experts_per_tok": 3, "intermediate_size": 32},
    ),
    "qwen3moe": (
        transformers.Qwen3MoeConfig,
        transformers.Qwen3MoeForCausalLM,
        {
            "num_experts": 5,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "intermediate_size": 96,
            "head_dim": 24,
            "norm_topk_prob": True,
        },
    ),
    "qwen2moe": (
        transformers.Qwen2MoeConfig,
        transformers.Qwen2MoeForCausalLM,
        {
            "num_experts": 5,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "shared_expert_intermediate_size": 48,
            "intermediate_size": 96,
        },
    ),
    "deepseek2": (
        transformers.DeepseekV2Config,
        transformers.DeepseekV2ForCausalLM,
        {
            **LATENT,
            "q_lora_rank": None,
            "n_routed_experts": 6,
            "num_experts_per_tok": 2,
            "n_shared_experts": 2,
            "routed_scaling_factor": 1.5,
            "topk_method": "group_limited_greedy",
            "n_group": 3,
            "topk_group": 2,
        },
    ),
    "deepseek2_v3": (
        transformers.DeepseekV3Config,
        transformers.DeepseekV3ForCausalLM,
        {
            **LATENT,
            "q_lora_rank": 40,
            "n_routed_experts": 6,
            "num_experts_per_tok": 3,
            "n_shared_experts": 1,
            "routed_scaling_factor": 2.5,
            "n_group": 3,
            "topk_group": 2,
        },
    ),
    "glm4moe": (
        transformers.Glm4MoeConfig,
        transformers.Glm4MoeForCausalLM,
        {
            "n_routed_experts": 5,
            "num_experts_per_tok": 2,
            "n_shared_experts": 1,
            "moe_intermediate_size": 32,
            "intermediate_size": 80,
            "first_k_dense_replace": 1,
            "num_hidden_layers": 3,
            "head_dim": 24,
            "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default", "partial_rotary_factor": 0.5},
            "attention_bias": True,
            "use_qk_norm": True,
            "routed_scaling_factor": 1.5,
        },
    ),
    "granitemoe": (
        transformers.GraniteMoeConfig,
        transformers.GraniteMoeForCausalLM,
        {"num_local_experts": 5, "num_experts_per_tok": 2, "intermediate_size": 32, **GRANITE_FACTORS},
    ),
    "granitemoe_shared": (
        transformers.GraniteMoeSharedConfig,
        transformers.GraniteMoeSharedForCausalLM,
        {
            "num_local_experts": 5,
            "num_experts_per_tok": 2,
            "intermediate_size": 32,
            "shared_intermediate_size": 48,
            **GRANITE_FACTORS,
        },
    ),
    "llama": (
        transformers.MixtralConfig,
        transformers.MixtralForCausalLM,
        {"num_local_experts": 5, "num_experts_per_tok": 2, "intermediate_size": 32},
    ),
    **tiny_hybrid.FAMILIES,
    **tiny_mamba.FAMILIES,
    **tiny_others.FAMILIES,
    **tiny_sigmoid.FAMILIES,
    **tiny_softmax.FAMILIES,
    **tiny_seeing.FAMILIES,
}


TENSORS = {**tiny_others.TENSORS, **tiny_sigmoid.TENSORS, **tiny_softmax.TENSORS}


def architecture_of(family: str) -> str:
    """A family is named after its architecture; what sets it apart from others of that stands behind an underscore."""
    start = family.rpartition("_")[0]
    return start if start in ARCHITECTURES else family


def tiny_model(family: str, seed: int = 0, **overrides: Any) -> Any:
    """A float32 model in eval mode; `overrides` are fields of its transformers config."""
    config_class, model_class, own = FAMILIES[family]
    torch.manual_seed(seed)
    config = config_class(**{**COMMON, **own, **overrides})
    config._attn_implementation = "eager"
    model = model_class(config).eval().float()
    model.config.allow_global_per_layer_attribute_access = True  # Gemma's, whose layers differ
    if family == "phimoe":
        tiny_others.choose_factors_by_length(model)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if family in tiny_hybrid.FAMILIES and tiny_hybrid.randomise(name, parameter):
                continue
            if family in tiny_mamba.FAMILIES and tiny_mamba.randomise(name, parameter):
                continue
            if name.endswith("bias"):
                parameter.normal_(0.0, 0.3)
            elif name.endswith("sinks"):
                parameter.normal_(0.0, 1.0)
            elif parameter.dim() == 1:
                parameter.copy_(1.0 + 0.3 * torch.randn_like(parameter))
            else:
                # Wide enough that attention and the router decide something, not so wide that they saturate.
                decides = any(part in name for part in ("gate.weight", "gate.wg", "router"))
                parameter.normal_(0.0, 0.25 if decides else parameter.shape[-1] ** -0.5)
        for name, values in buffers(model):
            values.copy_(0.2 * torch.randn_like(values) + (1.0 if name.endswith("layer_scalar") else 0.0))
    return model


def buffers(model: Any) -> Iterator[tuple[str, Any]]:
    """What transformers keeps outside the parameters: the router's biases that enter only the choice, and Gemma's
    factors on the layers.
    """
    stored = ("e_score_correction_bias", "expert_bias", "layer_scalar")
    return ((name, values) for name, values in model.named_buffers() if name.endswith(stored))


def save_hf(model: Any, folder: Path) -> Path:
    """The model as a Hugging Face folder (config.json, model.safetensors, no tokenizer)."""
    model.save_pretrained(folder)
    return folder


def hf_logits(model: Any, ids: np.ndarray) -> np.ndarray:
    """float32 [T, V] of the whole prompt."""
    with torch.no_grad():
        return model(torch.from_numpy(ids)[None]).logits[0].float().numpy()


def hf_greedy(model: Any, ids: np.ndarray, n_new: int) -> list[int]:
    """The `n_new` arg-max continuations of `ids`, without a cache."""
    sequence = list(ids)
    for _ in range(n_new):
        sequence.append(int(hf_logits(model, np.array(sequence)).argmax(axis=-1)[-1]))
    return [int(i) for i in sequence[len(ids) :]]


def prompt(n_tokens: int, seed: int = 1) -> np.ndarray:
    """Random token ids, int64 [n_tokens]."""
    return np.random.default_rng(seed).integers(2, VOCAB, n_tokens)


def write_gguf(
    model: Any, path: Path, family: str, metadata: dict[str, Any] | None = None, expanded: bool = False
) -> Path:
    """The model as one stock GGUF file in F32. `metadata` adds or replaces u32, f32, bool, str and array keys; None
    takes one away.

    `expanded`: the older layout, with attn_kv_b whole (latent attention), or ssm_in (`qwen3next`).
    """
    architecture = architecture_of(family)
    writer = gguf.GGUFWriter(path, architecture)
    keys = {**_metadata(model.config, architecture), **(metadata or {})}
    keys = {key: value for key, value in keys.items() if value is not None}
    if expanded and architecture == "deepseek2":
        keys = {key: value for key, value in keys.items() if not key.endswith("_mla")} | expanded_heads(model.config)
    for key, value in keys.items():
        _add(writer, key, value)
    for name, array in gguf_tensors(model, architecture, expanded):
        writer.add_tensor(name, np.ascontiguousarray(array, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, list):
        writer.add_array(key, value)
    else:
        writer.add_string(key, value)


def _metadata(config: Any, architecture: str) -> dict[str, Any]:
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    keys: dict[str, Any] = {
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "block_count": config.num_hidden_layers,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.layer_norm_rms_epsilon": float(config.rms_norm_eps),
        "rope.freq_base": float(config.rope_parameters.get("rope_theta", 10000.0)),
        "expert_count": next(
            getattr(config, name)
            for name in ("n_routed_experts", "num_experts", "num_local_experts")
            if hasattr(config, name)
        ),
        "expert_used_count": getattr(config, "num_experts_per_tok", None) or config.top_k_experts,
        "vocab_size": config.vocab_size,
    }
    if hasattr(config, "intermediate_size"):
        keys["feed_forward_length"] = config.intermediate_size
    if architecture in tiny_hybrid.FAMILIES:
        keys |= tiny_hybrid.hybrid_metadata(config, architecture)
    if architecture == "llama":
        keys["rope.dimension_count"] = head_dim
    if architecture == "qwen3moe":
        keys["attention.key_length"] = keys["attention.value_length"] = head_dim
        keys["expert_feed_forward_length"] = config.moe_intermediate_size
    if architecture == "deepseek2":
        keys |= latent_metadata(config)
    if architecture == "glm4moe":
        keys |= {
            "attention.key_length": head_dim,
            "attention.value_length": head_dim,
            "rope.dimension_count": int(head_dim * config.rope_parameters["partial_rotary_factor"]),
            "expert_feed_forward_length": config.moe_intermediate_size,
            "expert_shared_count": config.n_shared_experts,
            "expert_weights_scale": float(config.routed_scaling_factor),
            "expert_weights_norm": config.norm_topk_prob,
            "expert_gating_func": 2,
            "leading_dense_block_count": config.first_k_dense_replace,
        }
    seeing = dict.fromkeys(tiny_seeing.FAMILIES, tiny_seeing.metadata)
    for own in (tiny_others.METADATA, tiny_sigmoid.METADATA, tiny_softmax.METADATA, seeing):
        if architecture in own:
            keys |= own[architecture](config)
    if architecture in tiny_mamba.FAMILIES:
        keys |= tiny_mamba.mamba_metadata(config)
    if architecture in ("granitehybrid", "granitemoe"):
        keys |= {
            "attention.scale": config.attention_multiplier,
            "embedding_scale": config.embedding_multiplier,
            "residual_scale": config.residual_multiplier,
            "logit_scale": config.logits_scaling,
        }
        if hasattr(config, "shared_intermediate_size"):
            keys["expert_shared_feed_forward_length"] = config.shared_intermediate_size
    if architecture == "qwen2moe":
        keys["expert_feed_forward_length"] = config.moe_intermediate_size
        keys["expert_shared_feed_forward_length"] = config.shared_expert_intermediate_size
    return {"general.name": f"tiny {architecture}", **{f"{architecture}.{key}": value for key, value in keys.items()}}


def latent_metadata(config: Any) -> dict[str, Any]:
    """What a `deepseek2` file of the newer layout says: one key head as wide as the cached latent."""
    keys = {
        "attention.head_count_kv": 1,
        "attention.kv_lora_rank": config.kv_lora_rank,
        "attention.key_length": config.kv_lora_rank + config.qk_rope_head_dim,
        "attention.value_length": config.kv_lora_rank,
        "attention.key_length_mla": config.qk_nope_head_dim + config.qk_rope_head_dim,
        "attention.value_length_mla": config.v_head_dim,
        "rope.dimension_count": config.qk_rope_head_dim,
        "expert_feed_forward_length": config.moe_intermediate_size,
        "expert_shared_count": config.n_shared_experts,
        "expert_weights_scale": float(config.routed_scaling_factor),
        "expert_weights_norm": config.norm_topk_prob,
        "leading_dense_block_count": getattr(config, "first_k_dense_replace", None),
        "expert_group_count": config.n_group or 1,
        "expert_group_used_count": config.topk_group or 1,
    }
    return keys if config.q_lora_rank is None else {**keys, "attention.q_lora_rank": config.q_lora_rank}


def expanded_heads(config: Any) -> dict[str, Any]:
    """What an older `deepseek2` file says instead."""
    return {
        "deepseek2.attention.head_count_kv": config.num_attention_heads,
        "deepseek2.attention.key_length": config.qk_nope_head_dim + config.qk_rope_head_dim,
        "deepseek2.attention.value_length": config.v_head_dim,
    }


NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_a_proj": "attn_q_a",
    "self_attn.q_a_layernorm": "attn_q_a_norm",
    "self_attn.q_b_proj": "attn_q_b",
    "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa",
    "self_attn.kv_a_layernorm": "attn_kv_a_norm",
    "self_attn.kv_b_proj": "attn_kv_b",
    "mlp.gate": "ffn_gate_inp",
    "mlp.router": "ffn_gate_inp",
    "block_sparse_moe.router": "ffn_gate_inp",
    "shared_mlp.output_linear": "ffn_down_shexp",
    "mlp.shared_experts.gate_proj": "ffn_gate_shexp",
    "mlp.shared_experts.up_proj": "ffn_up_shexp",
    "mlp.shared_experts.down_proj": "ffn_down_shexp",
    "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
    "mlp.shared_expert.up_proj": "ffn_up_shexp",
    "mlp.shared_expert.down_proj": "ffn_down_shexp",
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
OUTER_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "model.norm.bias": "output_norm.bias",
    "lm_head.bias": "output.bias",
    "model.embedding_norm.weight": "token_embd_norm.weight",
    "lm_head.weight": "output.weight",
}


def gguf_tensors(model: Any, architecture: str, expanded: bool = False) -> Iterator[tuple[str, np.ndarray]]:
    """(GGUF name, float32 array in numpy order) of every stored parameter."""
    for name, values in buffers(model):
        kind = "layer_output_scale.weight" if name.endswith("layer_scalar") else "exp_probs_b.bias"
        yield f"blk.{name.split('.')[2]}.{kind}", values.numpy()
    if architecture in tiny_others.OUTER:
        yield from tiny_others.OUTER[architecture](model.config)
    heads = {"attn_q": model.config.num_attention_heads, "attn_k": model.config.num_key_value_heads}
    for name, parameter in model.named_parameters():  # tied parameters come once
        array = parameter.detach().numpy()
        if name in OUTER_NAMES:
            shift = 1.0 if architecture in tiny_hybrid.FAMILIES and name == "model.norm.weight" else 0.0
            yield OUTER_NAMES[name], array + shift
            continue
        _, _, layer, rest = name.split(".", 3)
        is_hybrid = architecture in tiny_hybrid.FAMILIES
        if is_hybrid and rest.endswith("norm.weight") and "linear_attn" not in rest:
            array = array + 1.0
        if rest.startswith("linear_attn."):
            yield from tiny_hybrid.delta_tensors(f"blk.{layer}", rest, array, model.config, architecture, expanded)
        elif rest.startswith("mamba."):
            yield from tiny_mamba.mamba_tensors(f"blk.{layer}", rest, array, model.config)
        elif architecture in TENSORS and (parts := TENSORS[architecture](rest, array)):
            yield from ((f"blk.{layer}.{own}", part) for own, part in parts)
        elif rest == "shared_mlp.input_linear.weight":  # [2 F, D]: gate rows first
            width = array.shape[0] // 2
            yield f"blk.{layer}.ffn_gate_shexp.weight", array[:width]
            yield f"blk.{layer}.ffn_up_shexp.weight", array[width:]
        elif rest.endswith(".experts.gate_up_proj"):  # [E, 2 F, D]: gate rows first
            width = array.shape[1] // 2
            yield f"blk.{layer}.ffn_gate_exps.weight", array[:, :width]
            yield f"blk.{layer}.ffn_up_exps.weight", array[:, width:]
        elif rest.endswith(".experts.down_proj"):
            yield f"blk.{layer}.ffn_down_exps.weight", array
        else:
            stem, kind = rest.rsplit(".", 1)
            own = NAMES[stem]
            if (is_hybrid or architecture in ("glm4moe", "gpt-oss")) and own == "ffn_norm":
                own = "post_attention_norm"
            if architecture in ("llama", "granitehybrid", "granitemoe") and own in heads:
                array = permute_rows(array, heads[own])
            if own == "attn_kv_b" and not expanded:
                yield from split_expansion(f"blk.{layer}", array, model.config)
            else:
                yield f"blk.{layer}.{own}.{kind}", array


def split_expansion(blk: str, array: np.ndarray, config: Any) -> Iterator[tuple[str, np.ndarray]]:
    """attn_kv_b [H * (nope + value), rank] as attn_k_b [H, rank, nope] and attn_v_b [H, value, rank]."""
    heads = array.reshape(config.num_attention_heads, -1, config.kv_lora_rank)
    yield f"{blk}.attn_k_b.weight", heads[:, : config.qk_nope_head_dim].swapaxes(1, 2)
    yield f"{blk}.attn_v_b.weight", heads[:, config.qk_nope_head_dim :]


def permute_rows(array: np.ndarray, num_heads: int) -> np.ndarray:
    """Rows of each head from halves (0, 1, .. | d/2, ..) to neighbours (0, d/2, 1, d/2 + 1, ..), as `llama` files
    keep them.
    """
    return array.reshape(num_heads, 2, -1, array.shape[-1]).swapaxes(1, 2).reshape(array.shape)
