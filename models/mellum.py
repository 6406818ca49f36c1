"""`mellum`: JetBrains' Mellum 2. Its own beside Qwen3's: most layers have a sliding window, and these rotate by a base
of their own and unscaled, whatever stretches the others.
"""

from __future__ import annotations

from models import qwen3moe
from models.config import ModelConfig
from models.model import Model
from models.weights import WeightSource


def build(source: WeightSource, config: ModelConfig) -> Model:
    """Take every non-expert tensor of a `mellum` file. Raises GGUFError for a missing or misshapen one."""
    return qwen3moe.build(source, config)
