"""`exaone-moe`: K-EXAONE. Its own beside `dots1`: most layers have a sliding window and rotate, the others see
everything and do not.
"""

from __future__ import annotations

from models import dots1
from models.config import ModelConfig
from models.model import Model
from models.weights import WeightSource


def build(source: WeightSource, config: ModelConfig) -> Model:
    """Take every non-expert tensor of an `exaone-moe` file. Raises GGUFError for a missing or misshapen one."""
    return dots1.build(source, config)
