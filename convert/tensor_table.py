"""Which tensors a model of given sizes has beside its routed experts, and their shapes: the converter checks a
checkpoint against this table, `synth` makes models by it.

Shapes are in numpy order (rows first); the order of the entries is the order in which a layer computes.
"""

from __future__ import annotations

from dataclasses import replace

from convert.model_metadata import LatentDims, ModelDims, WindowHeads
from models.config_mamba import Mamba2Config
from models.config_recurrent import DeltaNetConfig

Shapes = dict[str, tuple[int, ...]]
_NORM_BEHIND_ATTENTION = ("glm4moe", "gpt-oss", "qwen35moe", "qwen3next")  # what others call ffn_norm
_GEMMA4_NORMS = (
    "post_attention_norm", "ffn_norm", "post_ffw_norm_1", "pre_ffw_norm_2", "post_ffw_norm_2", "post_ffw_norm",
)  # fmt: skip
_SHARED_EXPERT_GATE = ("qwen2moe", "qwen35moe", "qwen3next")


def outer_shapes(dims: ModelDims) -> Shapes:
    """The tensors outside the layers. `output.weight` may be missing: then the embedding doubles as it."""
    table = (dims.vocab_size, dims.hidden_size)
    made = dims.rope_scaling.tensors if dims.rope_scaling is not None else {}
    factors: Shapes = {name: (len(values),) for name, values in made.items()}
    norm = "token_embd_norm.weight" if dims.architecture == "lfm2moe" else "output_norm.weight"
    shapes = factors | {"token_embd.weight": table, norm: (dims.hidden_size,), "output.weight": table}
    if dims.norm_biases:
        shapes["output_norm.bias"] = (dims.hidden_size,)
    if dims.logit_bias:
        shapes["output.bias"] = (dims.vocab_size,)
    return shapes


def layer_shapes(dims: ModelDims, layer: int) -> Shapes:
    """Every tensor of `layer` but its routed experts, without the leading `blk.N.`; each is required."""
    if dims.window_heads is not None:
        return _gemma4_layer(dims, dims.window_heads, layer)
    hidden = dims.hidden_size
    norm = "post_attention_norm" if dims.architecture in _NORM_BEHIND_ATTENTION else "ffn_norm"
    net = dims.delta_net
    mixer = _delta_net(dims, net) if net is not None and net.layers[layer] else _attention(dims)
    if dims.conv_kernel is not None and dims.conv_layers[layer]:
        mixer = _short_conv(hidden, dims.conv_kernel)
    if dims.mamba is not None and dims.mamba.layers[layer]:
        mixer = _mamba2(dims, dims.mamba)
    shapes = {"attn_norm.weight": (hidden,), **mixer, f"{norm}.weight": (hidden,)}
    if dims.norm_biases:
        shapes |= {"attn_norm.bias": (hidden,), f"{norm}.bias": (hidden,)}
    if dims.output_gate:
        shapes |= {f"post_{half}_norm.weight": (hidden,) for half in ("attention", "ffw")}
    if not has_experts(dims, layer):
        return shapes | _gated("ffn_{}.weight", hidden, dims.intermediate_size)
    shapes["ffn_gate_inp.weight"] = (dims.num_experts, hidden)
    if dims.expert_biases:
        shapes["ffn_gate_inp.bias"] = (dims.num_experts,)
        shapes |= {f"ffn_{name}_exps.bias": (dims.num_experts, dims.moe_intermediate_size) for name in ("gate", "up")}
        shapes["ffn_down_exps.bias"] = (dims.num_experts, hidden)
    if dims.has_selection_bias:
        shapes["exp_probs_b" if dims.architecture == "hy_v3" else "exp_probs_b.bias"] = (dims.num_experts,)
    if dims.shared_width:
        if dims.architecture in _SHARED_EXPERT_GATE:
            shapes["ffn_gate_inp_shexp.weight"] = (hidden,)
        shapes |= _gated("ffn_{}_shexp.weight", hidden, dims.shared_width)
    return shapes


def has_experts(dims: ModelDims, layer: int) -> bool:
    return layer >= (dims.leading_dense or 0)


def expert_shape(dims: ModelDims, linear: str) -> tuple[int, int]:
    """Shape of one expert's "gate", "up" or "down"."""
    wide = (dims.moe_intermediate_size, dims.hidden_size)
    return wide if linear != "down" else (wide[1], wide[0])


def _attention(dims: ModelDims) -> Shapes:
    if dims.latent is not None:
        return _latent_attention(dims, dims.latent)
    hidden, query, key = dims.hidden_size, dims.num_heads * dims.head_dim, dims.num_kv_heads * dims.head_dim
    shapes: Shapes = {}
    gated = 2 * query if dims.delta_net is not None else query  # with a gate on attention's output
    for name, rows in (("q", gated), ("k", key), ("v", key)):
        shapes[f"attn_{name}.weight"] = (rows, hidden)
        if dims.attention_bias:
            shapes[f"attn_{name}.bias"] = (rows,)
    if dims.qk_norm != "none":
        per_head = dims.qk_norm == "head"
        shapes["attn_q_norm.weight"] = (dims.head_dim if per_head else query,)
        shapes["attn_k_norm.weight"] = (dims.head_dim if per_head else key,)
    if dims.output_gate:
        shapes["attn_gate.weight"] = (query, hidden)
    shapes["attn_output.weight"] = (hidden, query)
    if dims.output_bias:
        shapes["attn_output.bias"] = (hidden,)
    if dims.sinks:
        shapes["attn_sinks.weight"] = (dims.num_heads,)
    return shapes


def _delta_net(dims: ModelDims, net: DeltaNetConfig) -> Shapes:
    hidden, heads = dims.hidden_size, net.num_heads
    shapes: Shapes = {"attn_qkv.weight": (net.conv_width, hidden), "attn_gate.weight": (net.value_width, hidden)}
    if dims.architecture == "qwen3next":
        shapes["ssm_ba.weight"] = (2 * heads, hidden)
    else:
        shapes |= {"ssm_beta.weight": (heads, hidden), "ssm_alpha.weight": (heads, hidden)}
    return shapes | {
        "ssm_conv1d.weight": (net.conv_width, net.conv_kernel),
        "ssm_dt.bias": (heads,),
        "ssm_a": (heads,),
        "ssm_norm.weight": (net.value_dim,),
        "ssm_out.weight": (hidden, net.value_width),
    }


def _mamba2(dims: ModelDims, net: Mamba2Config) -> Shapes:
    bias: Shapes = {"ssm_conv1d.bias": (net.conv_width,)} if dims.conv_bias else {}
    return {
        "ssm_in.weight": (net.projected_width, dims.hidden_size),
        "ssm_conv1d.weight": (net.conv_width, net.conv_kernel),
        **bias,
        "ssm_dt.bias": (net.num_heads,),
        "ssm_a": (net.num_heads, 1),
        "ssm_d": (net.num_heads, 1),
        "ssm_norm.weight": (net.num_groups, net.inner_width // net.num_groups),
        "ssm_out.weight": (dims.hidden_size, net.inner_width),
    }


def _latent_attention(dims: ModelDims, latent: LatentDims) -> Shapes:
    hidden, heads = dims.hidden_size, dims.num_heads
    query = heads * (latent.nope_dim + latent.rope_dim)
    shapes: Shapes = {"attn_q.weight": (query, hidden)}
    if latent.q_lora_rank:
        shapes = {
            "attn_q_a.weight": (latent.q_lora_rank, hidden),
            "attn_q_a_norm.weight": (latent.q_lora_rank,),
            "attn_q_b.weight": (query, latent.q_lora_rank),
        }
    return shapes | {
        "attn_kv_a_mqa.weight": (latent.kv_lora_rank + latent.rope_dim, hidden),
        "attn_kv_a_norm.weight": (latent.kv_lora_rank,),
        "attn_k_b.weight": (heads, latent.kv_lora_rank, latent.nope_dim),
        "attn_v_b.weight": (heads, latent.value_dim, latent.kv_lora_rank),
        "attn_output.weight": (hidden, heads * latent.value_dim),
    }


def _gemma4_layer(dims: ModelDims, own: WindowHeads, layer: int) -> Shapes:
    hidden, window = dims.hidden_size, dims.window_layers is not None and dims.window_layers[layer]
    if window:
        dims = replace(dims, head_dim=own.head_dim, num_kv_heads=own.num_kv_heads)
    attention = _attention(dims)
    if dims.shares_values and not window:
        del attention["attn_v.weight"]
    norms: Shapes = {f"{name}.weight": (hidden,) for name in _GEMMA4_NORMS}
    return {
        "attn_norm.weight": (hidden,),
        **attention,
        **norms,
        **_gated("ffn_{}.weight", hidden, dims.intermediate_size),
        "ffn_gate_inp.weight": (dims.num_experts, hidden),
        "ffn_gate_inp.scale": (hidden,),
        "ffn_down_exps.scale": (dims.num_experts,),
        "layer_output_scale.weight": (1,),
    }


def _short_conv(hidden: int, kernel: int) -> Shapes:
    return {
        "shortconv.in_proj.weight": (3 * hidden, hidden),
        "shortconv.conv.weight": (hidden, kernel),
        "shortconv.out_proj.weight": (hidden, hidden),
    }


def _gated(name: str, hidden: int, width: int) -> Shapes:
    return {
        name.format("gate"): (width, hidden),
        name.format("up"): (width, hidden),
        name.format("down"): (hidden, width),
    }
