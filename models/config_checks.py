"""What is refused before anything large is read: files that are no model of a known kind, and sizes that contradict
each other or the tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from models.config_experts import shared_width
from models.config_reader import ConfigReader
from models.config_table import ARCHITECTURES
from models.errors import GGUFError, UnsupportedArchitecture, UnsupportedError
from models.gguf import GGUFModel
from models.gguf_cursor import show
from models.relatives import KINDS, nearest_relative

MAX_EXPERTS = 1 << 14  # in one layer; the largest known models have some hundreds
_POSITIVE = (
    "num_layers",
    "context_length",
    "hidden_size",
    "num_heads",
    "num_kv_heads",
    "head_dim",
    "value_dim",
    "num_experts",
    "num_experts_per_tok",
    "moe_intermediate_size",
    "n_rot",
    "rms_norm_eps",
    "rope_theta",
    "swiglu_limit",
)


def refuse_other_kinds(model: GGUFModel) -> None:
    """Raises UnsupportedError for a file that is no whole model, as `general.type` tells."""
    kind = model.metadata.get("general.type", "model")
    if not isinstance(kind, str) or kind != "model":
        advice = f"; {KINDS[kind]}" if isinstance(kind, str) and kind in KINDS else ""
        raise UnsupportedError(
            f"{model.paths[0]}: general.type is {show(str(kind))}; pearl runs whole models (type 'model'){advice}"
        )


def architecture_of(model: GGUFModel) -> str:
    """`general.architecture`, checked to be one that pearl runs. Raises UnsupportedArchitecture with the nearest
    relative, UnsupportedError for a file that is no whole model, GGUFError.
    """
    refuse_other_kinds(model)
    where = str(model.paths[0])
    name = model.metadata.get("general.architecture")
    if not isinstance(name, str):
        raise GGUFError(f"{where}: metadata 'general.architecture' is missing or no string; is this a model?")
    if name not in ARCHITECTURES:
        raise UnsupportedArchitecture(show(name)[1:-1], ARCHITECTURES, where, nearest_relative(name, ARCHITECTURES))
    return name


def refuse_dense(model: GGUFModel, architecture: str, where: str) -> None:
    """Raises UnsupportedError for a model without experts."""
    count = model.metadata.get(f"{architecture}.expert_count", 0)
    if type(count) is int and count == 0:
        raise UnsupportedError(
            f"{where}: a dense '{architecture}' model without experts ({architecture}.expert_count is absent or 0); "
            "pearl runs Mixture-of-Experts models"
        )


def check_sizes(v: dict[str, Any], where: str, n_tensors: int) -> None:
    """Refuse sizes that cannot be: the rest of pearl may divide and allocate by them."""
    if n_tensors == 0:
        raise GGUFError(
            f"{where}: holds metadata and no tensors (a vocabulary file?); a model to run needs its weights"
        )
    for field in _POSITIVE:
        if v.get(field, 1) <= 0:
            raise GGUFError(f"{where}: {field} is {v[field]}; it must be above 0")
    rules = {
        f"{v['num_layers']} layers in a file of {n_tensors} tensors": v["num_layers"] <= n_tensors,
        f"{v['num_heads']} heads do not divide by {v['num_kv_heads']} key/value heads": (
            v["num_heads"] % v["num_kv_heads"] == 0
        ),
        f"{v['num_experts']} experts in a layer (pearl counts to {MAX_EXPERTS})": v["num_experts"] <= MAX_EXPERTS,
        f"{v['num_experts_per_tok']} of {v['num_experts']} experts per token": v["num_experts_per_tok"]
        <= v["num_experts"],
        f"{v['n_rot']} rotated components in heads of {v['head_dim']}": v["n_rot"] <= v["head_dim"]
        and v["n_rot"] % 2 == 0,
        f"{v.get('unused_layers', 0)} layers for predicting several tokens": v.get("unused_layers", 0) >= 0,
        f"a shared expert of width {shared_width(v)}": shared_width(v) >= 0,
        f"{v.get('leading_dense', 0)} of {v['num_layers']} layers without experts": (
            0 <= v.get("leading_dense", 0) < v["num_layers"]
        ),
        f"a sliding window of {v['sliding_window']}": v["sliding_window"] >= 0,
    }
    for rule, holds in rules.items():
        if not holds:
            raise GGUFError(f"{where}: the metadata contradicts itself: {rule}")
    if v["head_dim"] != v["value_dim"] and "kv_lora_rank" not in v:
        raise UnsupportedError(
            f"{where}: attention.key_length {v['head_dim']} and attention.value_length {v['value_dim']} differ, "
            "which is not implemented"
        )


def read_vocab_size(model: GGUFModel, reader: ConfigReader, hidden_size: int) -> int:
    """Rows of the embedding, which the metadata must agree with."""
    embedding = model.tensors.get("token_embd.weight")
    if embedding is None:
        raise GGUFError(f"{reader.where}: tensor 'token_embd.weight' is missing; is this a whole model?")
    declared = reader.read_optional("vocab_size", int)
    if declared is None:
        tokens = model.metadata.get("tokenizer.ggml.tokens", ())
        if not isinstance(tokens, Sequence) or isinstance(tokens, str):
            raise GGUFError(f"{reader.where}: metadata 'tokenizer.ggml.tokens' must be an array of strings")
        declared = len(tokens) or embedding.n_rows
        reader.defaults_used.append(f"{reader.prefix}.vocab_size = {declared} (length of the vocabulary)")
    if embedding.shape != (hidden_size, declared):
        raise GGUFError(
            f"{reader.where}: 'token_embd.weight' has shape {list(embedding.shape)}, "
            f"the metadata says [{hidden_size}, {declared}]"
        )
    return int(declared)
