"""A Hugging Face `config.json` read strictly: the only place in pearl where its spellings live.

A value that pearl does not implement is refused by name; a key that is missing takes the architecture's documented
default and leaves a note.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

from convert.gguf_metadata import Metadata
from convert.model_metadata import ModelDims, add_model_keys
from models.errors import CheckpointError, UnsupportedArchitecture, UnsupportedError

ARCHITECTURES = {"OlmoeForCausalLM": "olmoe", "Qwen3MoeForCausalLM": "qwen3moe", "MixtralForCausalLM": "llama"}
_DEFAULT_THETA = {"olmoe": 1e4, "qwen3moe": 1e4, "llama": 1e6}
_DEFAULT_EPS = {"olmoe": 1e-5, "qwen3moe": 1e-6, "llama": 1e-5}
N = TypeVar("N", int, float, bool)


class HfConfig:
    """Typed access to one config.json. `notes` collects a line for every default that was used."""

    def __init__(self, folder: Path, values: dict[str, Any]) -> None:
        self.path = folder / "config.json"
        self.values = {**values, **(values["text_config"] if isinstance(values.get("text_config"), dict) else {})}
        self.notes: list[str] = []
        self.architecture = self._architecture()

    def integer(self, *keys: str, default: int | None = None) -> int:
        """The whole number under the first of `keys` that is there. Raises CheckpointError."""
        value = self._first(keys)
        if value is None:
            return self._default(keys[0], default)
        if type(value) is not int or value < 0:
            raise CheckpointError(f"{self.path}: {keys[0]} is {value!r}, not a whole number")
        return value

    def real(self, *keys: str, default: float | None = None) -> float:
        value = self._first(keys)
        if value is None:
            return self._default(keys[0], default)
        if type(value) not in (int, float):
            raise CheckpointError(f"{self.path}: {keys[0]} is {value!r}, not a number")
        return float(value)

    def flag(self, key: str) -> bool | None:
        value = self.values.get(key)
        if value is not None and type(value) is not bool:
            raise CheckpointError(f"{self.path}: {key} is {value!r}, not true or false")
        return value

    def token_ids(self, key: str) -> list[int]:
        """A token id, or a list of them, as a list."""
        return token_ids(self.values.get(key), f"{self.path}: {key}")

    def dims(self) -> ModelDims:
        """The model's sizes. Raises CheckpointError where a required one is missing."""
        hidden, heads = self.integer("hidden_size"), self.integer("num_attention_heads")
        if not heads:
            raise CheckpointError(f"{self.path}: num_attention_heads is 0")
        width = self.integer("intermediate_size")
        return ModelDims(
            architecture=self.architecture,
            hidden_size=hidden,
            num_layers=self.integer("num_hidden_layers"),
            num_heads=heads,
            num_kv_heads=self.integer("num_key_value_heads", default=heads),
            head_dim=self.integer("head_dim") if self.values.get("head_dim") else hidden // heads,
            intermediate_size=width,
            moe_intermediate_size=self.integer("moe_intermediate_size") if self.architecture == "qwen3moe" else width,
            num_experts=self.integer("num_experts", "num_local_experts"),
            num_experts_per_tok=self.integer("num_experts_per_tok"),
            vocab_size=self.integer("vocab_size"),
            context_length=self.integer("max_position_embeddings"),
            rope_theta=self._rope_theta(),
            rms_norm_eps=self.real("rms_norm_eps", default=_DEFAULT_EPS[self.architecture]),
            norm_topk_prob=self.flag("norm_topk_prob"),
        )

    def add_metadata(self, metadata: Metadata) -> None:
        """Write the architecture's keys. Raises UnsupportedError for a value that pearl does not implement."""
        self._refuse_unimplemented()
        add_model_keys(metadata, self.dims())
        clip = self.values.get("clip_qkv")
        if clip is not None:
            metadata.f32(f"{self.architecture}.attention.clamp_kqv", self.real("clip_qkv"))
        self._add_rope_scaling(metadata)

    def _architecture(self) -> str:
        names = self.values.get("architectures")
        if not isinstance(names, list) or len(names) != 1 or not isinstance(names[0], str):
            raise CheckpointError(f"{self.path}: 'architectures' does not name one model class")
        if names[0] not in ARCHITECTURES:
            raise UnsupportedArchitecture(names[0], ARCHITECTURES, str(self.path))
        return ARCHITECTURES[names[0]]

    def _first(self, keys: tuple[str, ...]) -> Any:
        return next((self.values[key] for key in keys if self.values.get(key) is not None), None)

    def _default(self, key: str, default: N | None) -> N:
        if default is None:
            raise CheckpointError(f"{self.path}: {key} is missing")
        self.notes.append(f"config.json has no {key}; {default} is used")
        return default

    def _rope(self) -> dict[str, Any]:
        """Rope parameters: `rope_parameters` since transformers 5, `rope_scaling` before."""
        rope = self.values.get("rope_parameters") or self.values.get("rope_scaling") or {}
        if not isinstance(rope, dict):
            raise CheckpointError(f"{self.path}: rope parameters are no JSON object")
        return rope

    def _rope_theta(self) -> float:
        theta = self._rope().get("rope_theta", self.values.get("rope_theta"))
        if theta is None:
            return self._default("rope_theta", _DEFAULT_THETA[self.architecture])
        if type(theta) not in (int, float):
            raise CheckpointError(f"{self.path}: rope_theta is {theta!r}, not a number")
        return float(theta)

    def _add_rope_scaling(self, metadata: Metadata) -> None:
        rope, arch = self._rope(), self.architecture
        kind = rope.get("rope_type", rope.get("type", "default"))
        if kind == "default":
            return
        if kind not in ("linear", "yarn") or not isinstance(rope.get("factor"), (int, float)):
            raise UnsupportedError(
                f"{self.path}: rope type {kind!r} is not supported; supported: default, linear, yarn"
            )
        known = {"rope_type", "type", "rope_theta", "factor", "original_max_position_embeddings"}
        others = sorted(set(rope) - known)
        if others:
            raise UnsupportedError(f"{self.path}: rope parameter {others[0]} is not supported with {kind} scaling")
        metadata.string(f"{arch}.rope.scaling.type", kind)
        metadata.f32(f"{arch}.rope.scaling.factor", float(rope["factor"]))
        if rope.get("original_max_position_embeddings") is not None:
            metadata.u32(f"{arch}.rope.scaling.original_context_length", int(rope["original_max_position_embeddings"]))

    def _refuse_unimplemented(self) -> None:
        activation = self.values.get("hidden_act", "silu")
        if activation != "silu":
            raise UnsupportedError(f"{self.path}: hidden_act {activation!r} is not supported; supported: silu")
        partial = self._rope().get("partial_rotary_factor", self.values.get("partial_rotary_factor", 1.0))
        if partial != 1.0:
            raise UnsupportedError(f"{self.path}: partial_rotary_factor {partial!r} is not supported; supported: 1.0")
        window = self.values.get("sliding_window")
        if window is not None and self.values.get("use_sliding_window", True):
            self.notes.append(
                f"sliding_window {window} is not applied: attention sees the whole context, as in llama.cpp"
            )


def token_ids(value: Any, where: str) -> list[int]:
    """`value` (None, a token id, or a list of them) as a list. Raises CheckpointError."""
    items = [] if value is None else value if isinstance(value, list) else [value]
    if not all(type(item) is int and item >= 0 for item in items):
        raise CheckpointError(f"{where} is {value!r}, not token ids")
    return items
