"""`qwen35moe`: the text half of Qwen3.5 and Qwen3.6 with experts. Its own beside `qwen3next`: the delta nets' value
heads lie round the key heads, and beta and alpha have a matrix each.
"""

from __future__ import annotations

from models.config import ModelConfig
from models.model import Model
from models.qwen3next import build_hybrid
from models.weights import WeightSource


def build(source: WeightSource, config: ModelConfig) -> Model:
    """Take every non-expert tensor of a `qwen35moe` file. Raises GGUFError for a missing or misshapen one."""
    return build_hybrid(source, config, tiled=True)
