"""A Hugging Face `config.json` read strictly, as sizes and GGUF keys.

A value that pearl does not implement is refused by name; a key that is missing takes the architecture's documented
default and leaves a note. What only one architecture has is read in `hf_dims`.
"""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any

from convert.gguf_metadata import Metadata
from convert.hf_dims import architecture_fields
from convert.hf_rope import read_rope_scaling, stretched_theta
from convert.hf_values import HfValues
from convert.model_metadata import ModelDims, add_model_keys
from models.errors import CheckpointError, UnsupportedArchitecture, UnsupportedError

ARCHITECTURES = {
    "AfmoeForCausalLM": "afmoe",
    "DeepseekV2ForCausalLM": "deepseek2",
    "DeepseekV3ForCausalLM": "deepseek2",
    "Dots1ForCausalLM": "dots1",
    "Ernie4_5_MoeForCausalLM": "ernie4_5-moe",
    "ExaoneMoEForCausalLM": "exaone-moe",
    "ExaoneMoeForCausalLM": "exaone-moe",
    "Gemma4ForCausalLM": "gemma4",
    "Gemma4ForConditionalGeneration": "gemma4",
    "Glm4MoeForCausalLM": "glm4moe",
    "Glm4MoeLiteForCausalLM": "deepseek2",
    "Glm4vMoeForConditionalGeneration": "glm4moe",
    "GptOssForCausalLM": "gpt-oss",
    "GraniteMoeForCausalLM": "granitemoe",
    "GraniteMoeSharedForCausalLM": "granitemoe",
    "GraniteMoeHybridForCausalLM": "granitehybrid",
    "HYV3ForCausalLM": "hy_v3",
    "HunYuanMoEV1ForCausalLM": "hunyuan-moe",
    "Lfm2MoeForCausalLM": "lfm2moe",
    "MellumForCausalLM": "mellum",
    "MiniMaxM2ForCausalLM": "minimax-m2",
    "MixtralForCausalLM": "llama",
    "OlmoeForCausalLM": "olmoe",
    "PhiMoEForCausalLM": "phimoe",
    "PhimoeForCausalLM": "phimoe",
    "Qwen2MoeForCausalLM": "qwen2moe",
    "Qwen3MoeForCausalLM": "qwen3moe",
    "Qwen3NextForCausalLM": "qwen3next",
    "Qwen3VLMoeForConditionalGeneration": "qwen3vlmoe",
    "Qwen3_5MoeForCausalLM": "qwen35moe",
    "Qwen3_5MoeForConditionalGeneration": "qwen35moe",
}
_PARTLY_ROTATED = ("glm4moe", "minimax-m2", "qwen35moe", "qwen3next")
# Architectures whose sliding window is kept.
_WINDOWED = ("afmoe", "exaone-moe", "gemma4", "gpt-oss", "llama", "mellum", "phimoe")
_DEFAULT_THETA = {
    "ernie4_5-moe": 5e5, "gpt-oss": 1.5e5, "hy_v3": 11_158_840.0, "lfm2moe": 1e6, "llama": 1e6, "minimax-m2": 5e6,
    "phimoe": 1e6, "qwen3vlmoe": 5e5,
}  # fmt: skip  # the others' is 1e4
_SMALL_EPS = (
    "deepseek2", "dots1", "gemma4", "granitehybrid", "granitemoe", "mellum", "minimax-m2", "qwen2moe", "qwen35moe",
    "qwen3moe", "qwen3next", "qwen3vlmoe",
)  # fmt: skip
_DEFAULT_EPS = dict.fromkeys(_SMALL_EPS, 1e-6)  # the others' is 1e-5


class HfConfig(HfValues):
    """One config.json of a supported architecture; `unused_layers` are for predicting several tokens at once."""

    def __init__(self, folder: Path, values: dict[str, Any]) -> None:
        super().__init__(folder, values)
        self.model_class, self.architecture = self._architecture()
        self.unused_layers = self.optional_integer("num_nextn_predict_layers") or 0

    def dims(self) -> ModelDims:
        """The model's sizes. Raises CheckpointError where a required one is missing, UnsupportedError."""
        heads, hidden = self.integer("num_attention_heads"), self.integer("hidden_size")
        if not heads:
            raise CheckpointError(f"{self.path}: num_attention_heads is 0")
        # A model with experts in every layer may have no such width.
        width = self.integer("intermediate_size") if self.architecture != "qwen35moe" else 0
        theta = self._rope_theta()
        fields: dict[str, Any] = {
            "hidden_size": hidden,
            "num_layers": self.integer("num_hidden_layers"),
            "num_heads": heads,
            "intermediate_size": width,
            "moe_intermediate_size": width,
            "num_experts": self.integer_of_layers(
                "num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"
            ),
            "num_experts_per_tok": self.integer_of_layers("num_experts_per_tok", "top_k_experts", "moe_k", "moe_topk"),
            "vocab_size": self.integer("vocab_size"),
            "context_length": self.integer("max_position_embeddings"),
            "rope_theta": theta,
            "rms_norm_eps": self.real("rms_norm_eps", "norm_eps", default=_DEFAULT_EPS.get(self.architecture, 1e-5)),
            "rope_scaling": read_rope_scaling(self, self.architecture, self._head_dim, theta),
            **architecture_fields(self, self.architecture, self.model_class),
        }
        if "num_kv_heads" not in fields:
            fields["num_kv_heads"] = self.integer("num_key_value_heads", default=heads)
            fields["head_dim"] = self._head_dim()
        return ModelDims(architecture=self.architecture, **fields)

    def add_metadata(self, metadata: Metadata) -> None:
        """Write the architecture's keys. Raises UnsupportedError for a value that pearl does not implement."""
        self._refuse_unimplemented()
        add_model_keys(metadata, self.dims())
        if self.values.get("clip_qkv") is not None:
            metadata.f32(f"{self.architecture}.attention.clamp_kqv", self.real("clip_qkv"))

    def _architecture(self) -> tuple[str, str]:
        names = self.values.get("architectures")
        if not isinstance(names, list) or len(names) != 1 or not isinstance(names[0], str):
            raise CheckpointError(f"{self.path}: 'architectures' does not name one model class")
        if names[0] not in ARCHITECTURES:
            near = difflib.get_close_matches(names[0], ARCHITECTURES, 1, 0.5)
            hint = f"nearest relative: {near[0]}" if near else ""
            raise UnsupportedArchitecture(names[0], ARCHITECTURES, str(self.path), hint)
        return names[0], ARCHITECTURES[names[0]]

    def _rope_theta(self) -> float:
        if self.architecture in ("gemma4", "mellum"):  # one for each kind of layers, see hf_gemma4, hf_mellum
            return 0.0
        theta = self.rope().get("rope_theta", self.values.get("rope_theta"))
        if theta is None:
            theta = self.default("rope_theta", _DEFAULT_THETA.get(self.architecture, 1e4))
        theta = self.checked_real("rope_theta", theta)
        return stretched_theta(self, theta, self._head_dim()) if self.architecture == "hunyuan-moe" else theta

    def _head_dim(self) -> int:
        """As stated, or what the hidden width leaves for each head."""
        if self.values.get("head_dim"):
            return self.integer("head_dim")
        return self.integer("hidden_size") // self.integer("num_attention_heads")

    def _refuse_unimplemented(self) -> None:
        self.require("hidden_act", "silu")
        partial = self.rope().get("partial_rotary_factor", self.values.get("partial_rotary_factor"))
        if partial not in (None, 1.0) and self.architecture not in _PARTLY_ROTATED:
            raise UnsupportedError(f"{self.path}: partial_rotary_factor {partial!r} is not supported; supported: 1.0")
        window = self.values.get("sliding_window")
        if window and self.values.get("use_sliding_window", True) and self.architecture not in _WINDOWED:
            self.notes.append(
                f"sliding_window {window} is not applied: attention sees the whole context, as in llama.cpp"
            )


def token_ids(value: Any, where: str) -> list[int]:
    """`value` (None, a token id, or a list of them) as a list. Raises CheckpointError."""
    items = [] if value is None else value if isinstance(value, list) else [value]
    if not all(type(item) is int and item >= 0 for item in items):
        raise CheckpointError(f"{where} is {value!r}, not token ids")
    return items
