"""A family of `tests.tiny_models` that is the text half of a model that sees: Qwen3-VL with experts. transformers has
no class for that half with its output matrix, so it is put together here, under the name that such folders carry.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import torch
from safetensors.numpy import load_file, save_file
from transformers.models.qwen3_vl_moe.configuration_qwen3_vl_moe import Qwen3VLMoeTextConfig
from transformers.models.qwen3_vl_moe.modeling_qwen3_vl_moe import Qwen3VLMoePreTrainedModel, Qwen3VLMoeTextModel


class Qwen3VLMoeForConditionalGeneration(Qwen3VLMoePreTrainedModel):
    """Embedding, layers and output of the text half."""

    config_class = Qwen3VLMoeTextConfig
    _tied_weights_keys: ClassVar = {"lm_head.weight": "model.embed_tokens.weight"}

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.model = Qwen3VLMoeTextModel(config)
        self.lm_head = torch.nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def forward(self, input_ids: torch.Tensor) -> Any:
        """`logits` [1, T, V]."""
        return SimpleNamespace(logits=self.lm_head(self.model(input_ids=input_ids).last_hidden_state))


FAMILIES: dict[str, tuple[type, type, dict[str, Any]]] = {
    "qwen3vlmoe": (
        Qwen3VLMoeTextConfig,
        Qwen3VLMoeForConditionalGeneration,
        {
            "num_experts": 5,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 40,  # as wide as a row is long, twice, would hide which way a stack lies
            "intermediate_size": 96,
            "head_dim": 24,
            "rope_parameters": {
                "rope_theta": 10000.0, "rope_type": "default", "mrope_section": [4, 4, 4], "mrope_interleaved": True,
            },
        },
    ),
}  # fmt: skip


def metadata(config: Any) -> dict[str, Any]:
    """The keys that only such files have."""
    return {
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        "expert_feed_forward_length": config.moe_intermediate_size,
        "rope.dimension_sections": [*config.rope_parameters["mrope_section"], 0],
        "n_deepstack_layers": 1,
    }


def as_published(folder: Path, model_class: str | None = None, **rope: Any) -> Path:
    """The folder of a tiny model as those of models that see are: text under `language_model` and `text_config`, stacks
    of experts with inputs before outputs, and beside them the half that sees. `rope`: more rope parameters.
    """
    settings, weights = folder / "config.json", folder / "model.safetensors"
    text = json.loads(settings.read_text())
    vision = {"depth": 4, "hidden_size": 8, "num_heads": 2, "deepstack_visual_indexes": [2]}
    text["rope_parameters"] |= rope
    named = text.pop("architectures") if model_class is None else [model_class]
    whole = {"architectures": named, "text_config": text, "vision_config": vision}
    settings.write_text(json.dumps(whole | {"tie_word_embeddings": text["tie_word_embeddings"]}))
    tensors = {"model.visual.pos_embed.weight": np.zeros((4, 8), np.float32)}
    for name, array in load_file(weights).items():
        turned = np.ascontiguousarray(array.swapaxes(1, 2)) if array.ndim == 3 else array
        tensors[name.replace("model.", "model.language_model.", 1) if name.startswith("model.") else name] = turned
    save_file(tensors, weights, {"format": "pt"})
    return folder
