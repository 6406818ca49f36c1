"""Hugging Face tensor names to GGUF names, for every way in which checkpoints spell experts.

Covered: one tensor an expert (`experts.3.w1` or `experts.3.gate_proj`), stacks of all experts (`switch_mlp.gate_proj`,
`experts.down_proj`) and stacks with gate and up in one (`experts.gate_up_proj`, GraniteMoE's `input_linear`), with any
`model.` or `language_model.` before them; attention plain or latent, shared experts, dense layers. Shapes and values
are not looked at here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

DROPPED = re.compile(r"(^|\.)rotary_emb\.inv_freq$|\.attention\.(masked_)?bias$")
_PREFIX = re.compile(r"^(?:language_model\.|model\.(?=language_model\.)|model\.(?=model\.))*(?:model\.)?")
_TOP = {
    "embed_tokens.weight": "token_embd.weight",
    "norm.weight": "output_norm.weight",
    "embedding_norm.weight": "token_embd_norm.weight",
    "lm_head.weight": "output.weight",
    "norm.bias": "output_norm.bias",
    "lm_head.bias": "output.bias",
}
_LAYER = re.compile(r"^layers\.(\d+)\.(.+)$")
_SHARED = ("shared_expert", "shared_experts", "shared_mlp")
_IN_LAYER = {
    "input_layernorm.weight": "attn_norm.weight",
    "input_layernorm.bias": "attn_norm.bias",
    "post_attention_layernorm.bias": "ffn_norm.bias",
    "post_attention_layernorm.weight": "ffn_norm.weight",
    "self_attn.q_norm.weight": "attn_q_norm.weight",
    "self_attn.k_norm.weight": "attn_k_norm.weight",
    "self_attn.query_layernorm.weight": "attn_q_norm.weight",
    "self_attn.key_layernorm.weight": "attn_k_norm.weight",
    **{
        f"self_attn.{hf}_proj.{part}": f"attn_{gguf}.{part}"
        for hf, gguf in (("q", "q"), ("k", "k"), ("v", "v"), ("o", "output"))
        for part in ("weight", "bias")
    },
    "self_attn.q_a_proj.weight": "attn_q_a.weight",
    "self_attn.q_a_layernorm.weight": "attn_q_a_norm.weight",
    "self_attn.q_b_proj.weight": "attn_q_b.weight",
    "self_attn.kv_a_proj_with_mqa.weight": "attn_kv_a_mqa.weight",
    "self_attn.kv_a_layernorm.weight": "attn_kv_a_norm.weight",
    "mlp.gate.weight": "ffn_gate_inp.weight",
    "mlp.gate.wg.weight": "ffn_gate_inp.weight",
    "mlp.gate.e_score_correction_bias": "exp_probs_b.bias",
    "mlp.e_score_correction_bias": "exp_probs_b.bias",
    "mlp.moe_statics.e_score_correction_bias": "exp_probs_b.bias",
    "block_sparse_moe.e_score_correction_bias": "exp_probs_b.bias",
    "mlp.router.weight": "ffn_gate_inp.weight",
    "mlp.router.gate.weight": "ffn_gate_inp.weight",
    "mlp.router.bias": "ffn_gate_inp.bias",
    "self_attn.sinks": "attn_sinks.weight",
    "linear_attn.in_proj_qkv.weight": "attn_qkv.weight",
    "linear_attn.in_proj_z.weight": "attn_gate.weight",
    "linear_attn.in_proj_ba.weight": "ssm_ba.weight",
    "linear_attn.in_proj_b.weight": "ssm_beta.weight",
    "linear_attn.in_proj_a.weight": "ssm_alpha.weight",
    "linear_attn.conv1d.weight": "ssm_conv1d.weight",
    "linear_attn.dt_bias": "ssm_dt.bias",
    "linear_attn.A_log": "ssm_a",
    "linear_attn.norm.weight": "ssm_norm.weight",
    "linear_attn.out_proj.weight": "ssm_out.weight",
    "mamba.in_proj.weight": "ssm_in.weight",
    "mamba.conv1d.weight": "ssm_conv1d.weight",
    "mamba.conv1d.bias": "ssm_conv1d.bias",
    "mamba.dt_bias": "ssm_dt.bias",
    "mamba.A_log": "ssm_a",
    "mamba.D": "ssm_d",
    "mamba.norm.weight": "ssm_norm.weight",
    "mamba.out_proj.weight": "ssm_out.weight",
    "operator_norm.weight": "attn_norm.weight",
    "ffn_norm.weight": "ffn_norm.weight",
    "conv.conv.weight": "shortconv.conv.weight",
    "conv.in_proj.weight": "shortconv.in_proj.weight",
    "conv.out_proj.weight": "shortconv.out_proj.weight",
    "self_attn.out_proj.weight": "attn_output.weight",
    "self_attn.q_layernorm.weight": "attn_q_norm.weight",
    "self_attn.k_layernorm.weight": "attn_k_norm.weight",
    "feed_forward.gate.weight": "ffn_gate_inp.weight",
    "feed_forward.expert_bias": "exp_probs_b.bias",
    "feed_forward.w1.weight": "ffn_gate.weight",
    "feed_forward.w2.weight": "ffn_down.weight",
    "feed_forward.w3.weight": "ffn_up.weight",
    "block_sparse_moe.gate.weight": "ffn_gate_inp.weight",
    "block_sparse_moe.router.layer.weight": "ffn_gate_inp.weight",
    "mlp.shared_expert_gate.weight": "ffn_gate_inp_shexp.weight",
    "shared_mlp.output_linear.weight": "ffn_down_shexp.weight",
    **{
        f"mlp.{shared}{linear}_proj.weight": f"ffn_{linear}{suffix}.weight"
        for shared, suffix in (("", ""), *((f"{name}.", "_shexp") for name in _SHARED))
        for linear in ("gate", "up", "down")
    },
}
_HALVES = {"shared_mlp.input_linear.weight": ("ffn_gate_shexp.weight", "ffn_up_shexp.weight")}
_EXPANSION = "self_attn.kv_b_proj.weight"
_KEY_HEAD_GROUPS = "linear_attn.in_proj_qkvz.weight"
# Parts of a checkpoint that text, token by token, does not need.
SEVERAL_TOKENS = "predict several tokens at once and are not computed"
_LEFT_BEHIND = (
    (re.compile(r"^(?:model\.)*mtp[._]"), SEVERAL_TOKENS),
    (
        re.compile(r"^(?:model\.)*(?:visual|vision_tower|embed_vision|audio_tower|embed_audio)\."),
        "see pictures or hear, and pearl reads text",
    ),
)
# What single architectures call otherwise than the rest: the norm before the feed-forward is the one behind attention.
_OWN = {
    architecture: {"post_attention_layernorm.weight": "post_attention_norm.weight"}
    for architecture in ("glm4moe", "gpt-oss", "qwen35moe", "qwen3next")
}
_OWN["afmoe"] = {
    "post_attention_layernorm.weight": "post_attention_norm.weight",
    "pre_mlp_layernorm.weight": "ffn_norm.weight",
    "post_mlp_layernorm.weight": "post_ffw_norm.weight",
    "self_attn.gate_proj.weight": "attn_gate.weight",
    "mlp.expert_bias": "exp_probs_b.bias",
}
# By this name alone llama.cpp finds it.
_OWN["hy_v3"] = dict.fromkeys(("mlp.expert_bias", "mlp.e_score_correction_bias"), "exp_probs_b")
_OWN["gemma4"] = {
    "post_attention_layernorm.weight": "post_attention_norm.weight",
    "pre_feedforward_layernorm.weight": "ffn_norm.weight",
    "pre_feedforward_layernorm_2.weight": "pre_ffw_norm_2.weight",
    "post_feedforward_layernorm.weight": "post_ffw_norm.weight",
    "post_feedforward_layernorm_1.weight": "post_ffw_norm_1.weight",
    "post_feedforward_layernorm_2.weight": "post_ffw_norm_2.weight",
    "router.proj.weight": "ffn_gate_inp.weight",
    "router.scale": "ffn_gate_inp.scale",
    "router.per_expert_scale": "ffn_down_exps.scale",
    "layer_scalar": "layer_output_scale.weight",
}
_LINEAR = {"w1": "gate", "w2": "down", "w3": "up", "gate_proj": "gate", "up_proj": "up", "down_proj": "down"}
_BLOCK = r"^(?:(?:mlp|block_sparse_moe|feed_forward)\.)?"
_ONE_EXPERT = re.compile(_BLOCK + r"experts\.(\d+)\.(w1|w2|w3|gate_proj|up_proj|down_proj)\.weight$")
_STACK = re.compile(_BLOCK + r"(?:experts|switch_mlp)\.(gate_proj|up_proj|down_proj)(?:\.weight)?$")
_FUSED = re.compile(_BLOCK + r"(?:experts\.gate_up_proj(?:\.weight)?|input_linear\.weight)$")
_GPT_OSS = re.compile(r"^mlp\.experts\.(gate_up|down)_proj(_bias|_blocks)?$")
_GRANITE_DOWN = re.compile(_BLOCK + r"output_linear\.weight$")


@dataclass(frozen=True, slots=True)
class Plain:
    """A tensor that keeps its shape under the GGUF name `name`. `layer` is None outside the layers."""

    name: str
    layer: int | None


@dataclass(frozen=True, slots=True)
class Experts:
    """Weights of experts of one layer: of `expert`, or of all where that is None (a stack along the first dimension).

    `linears`: ("gate",), ("up",), ("down",), or ("gate", "up") along the rows of each expert, one after the other or
    in turn. What lies in turn is packed (blocks of MXFP4, their scales in a tensor of their own) or has inputs before
    outputs, which a `transposed` stack may have.
    """

    layer: int
    expert: int | None
    linears: tuple[str, ...]
    in_turn: bool = False
    packed: bool = False
    transposed: bool = False


@dataclass(frozen=True, slots=True)
class ExpertBiasRows:
    """What is added to the products of all experts of a layer: one row an expert; two `linears` lie in turn."""

    layer: int
    linears: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Halves:
    """A matrix whose rows are those of `names`, in equal parts."""

    layer: int
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Expansion:
    """Latent attention's `kv_b_proj`, which a GGUF keeps as `attn_k_b` and `attn_v_b`."""

    layer: int


@dataclass(frozen=True, slots=True)
class KeyHeadGroups:
    """A delta net's matrix of query, key, values and gates, key head by key head: a GGUF's `attn_qkv`, `attn_gate`."""

    layer: int


Place = KeyHeadGroups | Plain | Experts | ExpertBiasRows | Halves | Expansion


def layer_of(name: str) -> int | None:
    """The layer that the Hugging Face tensor `name` belongs to, None outside the layers."""
    found = _LAYER.match(_PREFIX.sub("", name))
    return int(found[1]) if found else None


def why_left_behind(name: str) -> str | None:
    """What the tensors of a part that is not converted do, None for all others."""
    return next((why for pattern, why in _LEFT_BEHIND if pattern.match(name)), None)


def map_name(name: str, architecture: str) -> Place | None:
    """What the Hugging Face tensor `name` is, None where it has no place in a GGUF."""
    short = _PREFIX.sub("", name)
    if short in _TOP:
        return Plain(_TOP[short], None)
    found = _LAYER.match(short)
    if not found:
        return None
    layer, rest = int(found[1]), found[2]
    plain = _OWN.get(architecture, {}).get(rest) or _IN_LAYER.get(rest)
    if plain is not None:
        return Plain(f"blk.{layer}.{plain}", layer)
    if rest in _HALVES:
        return Halves(layer, tuple(f"blk.{layer}.{half}" for half in _HALVES[rest]))
    if architecture == "gpt-oss":
        return _map_gpt_oss(layer, rest)
    if rest == _KEY_HEAD_GROUPS:
        return KeyHeadGroups(layer)
    if rest == _EXPANSION:
        return Expansion(layer)
    experts = _map_experts(layer, rest)
    return replace(experts, transposed=True) if experts is not None and architecture == "qwen3vlmoe" else experts


def _map_gpt_oss(layer: int, rest: str) -> Experts | ExpertBiasRows | None:
    found = _GPT_OSS.match(rest)
    if not found:
        return None
    linears = ("gate", "up") if found[1] == "gate_up" else ("down",)
    if found[2] == "_bias":
        return ExpertBiasRows(layer, linears)
    return Experts(layer, None, linears, in_turn=True, packed=found[2] == "_blocks")


def _map_experts(layer: int, rest: str) -> Experts | None:
    one = _ONE_EXPERT.match(rest)
    if one:
        return Experts(layer, int(one[1]), (_LINEAR[one[2]],))
    stack = _STACK.match(rest)
    if stack:
        return Experts(layer, None, (_LINEAR[stack[1]],))
    if _FUSED.match(rest):
        return Experts(layer, None, ("gate", "up"))
    return Experts(layer, None, ("down",)) if _GRANITE_DOWN.match(rest) else None
