"""A config.json that publishers ship, with some of its fields changed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from convert.hf_config import HfConfig


def hf_config_of(published: Mapping[str, Any], **changes: Any) -> HfConfig:
    """`published` with `changes`; None takes a field away."""
    merged = {**published, **changes}
    return HfConfig(Path("hf"), {key: value for key, value in merged.items() if value is not None})
