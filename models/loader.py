"""From an open file to a model: every non-expert tensor is read once, straight to where it stays; none is left over."""

from __future__ import annotations

from kernels.backend import Backend
from models.config import ModelConfig
from models.gguf import GGUFModel
from models.latent_attention import expansion_bytes
from models.model import Model
from models.registry import build_model
from models.weights import WeightSource, arena_bytes


def load_model(gguf: GGUFModel, backend: Backend) -> Model:
    """Read every tensor but the experts' into memory (`non_expert_bytes`).

    Raises GGUFError for a tensor that is missing, misshapen, short or of no use to the architecture, and the errors of
    `ModelConfig.from_gguf`.
    """
    config = ModelConfig.from_gguf(gguf)
    source = WeightSource(gguf, backend, config)
    model = build_model(source, config)
    source.finish()
    return model


def non_expert_bytes(gguf: GGUFModel, config: ModelConfig) -> int:
    """Bytes that `load_model` allocates for weights."""
    return arena_bytes(gguf, config) + expansion_bytes(gguf, config)
