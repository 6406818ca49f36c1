"""`hy_v3`: Tencent's Hy3. Its own beside `dots1`: files do not say how many first layers are dense, their tensors do,
and the bias that enters the choice only goes by a name without an ending.
"""

from __future__ import annotations

from models import dots1
from models.config import ModelConfig
from models.model import Model
from models.weights import WeightSource


def build(source: WeightSource, config: ModelConfig) -> Model:
    """Take every non-expert tensor of a `hy_v3` file. Raises GGUFError for a missing or misshapen one."""
    return dots1.build(source, config)
