"""`qwen3vlmoe`: the text half of Qwen3-VL with experts, which is Qwen3's: text has one position for all axes of its
rotation, and what pictures add to the first layers is not there.
"""

from __future__ import annotations

from models import qwen3moe
from models.config import ModelConfig
from models.model import Model
from models.weights import WeightSource


def build(source: WeightSource, config: ModelConfig) -> Model:
    """Take every non-expert tensor of a `qwen3vlmoe` file. Raises GGUFError for a missing or misshapen one."""
    return qwen3moe.build(source, config)
