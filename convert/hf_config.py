"""A Hugging Face `config.json` read strictly, as sizes and GGUF keys.

A value that pearl does not implement is refused by name; a key that is missing takes the architecture's documented
default and leaves a note. What only one architecture has is read in `hf_dims`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from convert.gguf_metadata import Metadata
from convert.hf_dims import architecture_fields
from convert.hf_values import HfValues
from convert.model_metadata import ModelDims, RopeScaling, add_model_keys
from models.errors import CheckpointError, UnsupportedArchitecture, UnsupportedError

ARCHITECTURES = {
    "DeepseekV2ForCausalLM": "deepseek2",
    "DeepseekV3ForCausalLM": "deepseek2",
    "Glm4MoeForCausalLM": "glm4moe",
    "GptOssForCausalLM": "gpt-oss",
    "GraniteMoeForCausalLM": "granitemoe",
    "GraniteMoeSharedForCausalLM": "granitemoe",
    "MixtralForCausalLM": "llama",
    "OlmoeForCausalLM": "olmoe",
    "Qwen2MoeForCausalLM": "qwen2moe",
    "Qwen3MoeForCausalLM": "qwen3moe",
}
_DEFAULT_THETA = {"gpt-oss": 1.5e5, "llama": 1e6}  # transformers' own; the others' is 1e4
_DEFAULT_EPS = {"deepseek2": 1e-6, "granitemoe": 1e-6, "qwen2moe": 1e-6, "qwen3moe": 1e-6}  # the others' is 1e-5
_ROPE_KEYS = {
    "rope_type", "type", "rope_theta", "factor", "original_max_position_embeddings", "beta_fast", "beta_slow",
    "partial_rotary_factor", "truncate",
}  # fmt: skip


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
        width = self.integer("intermediate_size")
        fields: dict[str, Any] = {
            "hidden_size": hidden,
            "num_layers": self.integer("num_hidden_layers"),
            "num_heads": heads,
            "intermediate_size": width,
            "moe_intermediate_size": width,
            "num_experts": self.integer("num_experts", "num_local_experts", "n_routed_experts"),
            "num_experts_per_tok": self.integer("num_experts_per_tok"),
            "vocab_size": self.integer("vocab_size"),
            "context_length": self.integer("max_position_embeddings"),
            "rope_theta": self._rope_theta(),
            "rms_norm_eps": self.real("rms_norm_eps", default=_DEFAULT_EPS.get(self.architecture, 1e-5)),
            "rope_scaling": self._rope_scaling(),
            **architecture_fields(self, self.architecture, self.model_class),
        }
        if "latent" not in fields:
            fields["num_kv_heads"] = self.integer("num_key_value_heads", default=heads)
            fields["head_dim"] = self.integer("head_dim") if self.values.get("head_dim") else hidden // heads
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
            raise UnsupportedArchitecture(names[0], ARCHITECTURES, str(self.path))
        return names[0], ARCHITECTURES[names[0]]

    def _rope_theta(self) -> float:
        theta = self.rope().get("rope_theta", self.values.get("rope_theta"))
        if theta is None:
            return self.default("rope_theta", _DEFAULT_THETA.get(self.architecture, 1e4))
        if type(theta) not in (int, float):
            raise CheckpointError(f"{self.path}: rope_theta is {theta!r}, not a number")
        return float(theta)

    def _rope_scaling(self) -> RopeScaling | None:
        rope = self.rope()
        kind = rope.get("rope_type", rope.get("type", "default"))
        if kind == "default":
            return None
        numbers = {key: value for key, value in rope.items() if type(value) in (int, float)}
        if kind not in ("linear", "yarn") or "factor" not in numbers:
            raise UnsupportedError(
                f"{self.path}: rope type {kind!r} is not supported; supported: default, linear, yarn"
            )
        if kind == "yarn":
            self._check_yarn_ramp(rope)
        latent_yarn = self.architecture == "deepseek2" and kind == "yarn"
        others = sorted(set(rope) - _ROPE_KEYS - ({"mscale", "mscale_all_dim"} if latent_yarn else set()))
        if others:
            raise UnsupportedError(f"{self.path}: rope parameter {others[0]} is not supported with {kind} scaling")
        original = numbers.get("original_max_position_embeddings")
        return RopeScaling(
            kind=kind,
            factor=float(numbers["factor"]),
            original_context=None if original is None else int(original),
            beta_fast=numbers.get("beta_fast"),
            beta_slow=numbers.get("beta_slow"),
            log_multiplier=self._log_multiplier(numbers) if latent_yarn else None,
        )

    def _check_yarn_ramp(self, rope: dict[str, Any]) -> None:
        """No key of a GGUF says whether YaRN's ramp is rounded to whole components, so it must be as the architecture
        has it."""
        expected = self.architecture != "gpt-oss"
        if rope.get("truncate", True) is not expected:
            raise UnsupportedError(
                f"{self.path}: YaRN with truncate {rope.get('truncate')} is not supported for {self.architecture}; "
                f"supported: {expected}"
            )

    def _log_multiplier(self, rope: dict[str, Any]) -> float:
        """0.1 * mscale_all_dim; with mscale equal to it the factor on cos and sin is 1, which is all that GGUF says."""
        if not rope.get("mscale_all_dim") or rope.get("mscale") != rope["mscale_all_dim"]:
            raise UnsupportedError(
                f"{self.path}: YaRN with mscale {rope.get('mscale')} and mscale_all_dim {rope.get('mscale_all_dim')} "
                "is not supported; supported: equal and above 0"
            )
        return 0.1 * float(rope["mscale_all_dim"])

    def _refuse_unimplemented(self) -> None:
        self.require("hidden_act", "silu")
        partial = self.rope().get("partial_rotary_factor", self.values.get("partial_rotary_factor"))
        if partial not in (None, 1.0) and self.architecture != "glm4moe":
            raise UnsupportedError(f"{self.path}: partial_rotary_factor {partial!r} is not supported; supported: 1.0")
        window = self.values.get("sliding_window")
        if window and self.values.get("use_sliding_window", True) and self.architecture != "gpt-oss":
            self.notes.append(
                f"sliding_window {window} is not applied: attention sees the whole context, as in llama.cpp"
            )


def token_ids(value: Any, where: str) -> list[int]:
    """`value` (None, a token id, or a list of them) as a list. Raises CheckpointError."""
    items = [] if value is None else value if isinstance(value, list) else [value]
    if not all(type(item) is int and item >= 0 for item in items):
        raise CheckpointError(f"{where} is {value!r}, not token ids")
    return items
