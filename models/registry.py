"""Which file builds which `general.architecture`."""

from __future__ import annotations

from collections.abc import Callable

from models import (
    afmoe,
    deepseek2,
    dots1,
    ernie4_5_moe,
    exaone_moe,
    gemma4,
    glm4moe,
    gpt_oss,
    granitehybrid,
    granitemoe,
    hunyuan_moe,
    hy_v3,
    lfm2moe,
    llama,
    mellum,
    minimax_m2,
    olmoe,
    phimoe,
    qwen2moe,
    qwen3moe,
    qwen3next,
    qwen3vlmoe,
    qwen35moe,
)
from models.config import ModelConfig
from models.errors import UnsupportedArchitecture
from models.model import Model
from models.weights import WeightSource

ARCHITECTURES: dict[str, Callable[[WeightSource, ModelConfig], Model]] = {
    "afmoe": afmoe.build,
    "deepseek2": deepseek2.build,
    "dots1": dots1.build,
    "ernie4_5-moe": ernie4_5_moe.build,
    "exaone-moe": exaone_moe.build,
    "gemma4": gemma4.build,
    "glm4moe": glm4moe.build,
    "gpt-oss": gpt_oss.build,
    "granitehybrid": granitehybrid.build,
    "granitemoe": granitemoe.build,
    "hunyuan-moe": hunyuan_moe.build,
    "hy_v3": hy_v3.build,
    "lfm2moe": lfm2moe.build,
    "llama": llama.build,
    "mellum": mellum.build,
    "minimax-m2": minimax_m2.build,
    "olmoe": olmoe.build,
    "phimoe": phimoe.build,
    "qwen2moe": qwen2moe.build,
    "qwen3moe": qwen3moe.build,
    "qwen35moe": qwen35moe.build,
    "qwen3next": qwen3next.build,
    "qwen3vlmoe": qwen3vlmoe.build,
}


def build_model(source: WeightSource, config: ModelConfig) -> Model:
    """The model of `config.architecture` with its tensors from `source`. Raises UnsupportedArchitecture, GGUFError."""
    build = ARCHITECTURES.get(config.architecture)
    if build is None:
        raise UnsupportedArchitecture(config.architecture, ARCHITECTURES, source.where)
    return build(source, config)
