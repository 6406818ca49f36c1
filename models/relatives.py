"""Which supported architecture is nearest to one that pearl does not run, for the message that refuses it; and what the
kinds of files are that are no model to run at all.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection

# By the beginning of the name; the first that fits. What they share is said where names alone would mislead.
_RELATIVES = {
    "arctic": "llama",  # a dense half beside Mixtral's experts
    "bailingmoe": "glm4moe",  # sigmoid, groups, a shared expert
    "cohere2moe": "olmoe",
    "dbrx": "llama",
    "deci": "llama",
    "deepseek": "deepseek2",
    "dots": "dots1",
    "ernie": "ernie4_5-moe",
    "falcon-h1": "granitehybrid",
    "glm-dsa": "deepseek2",
    "glm": "glm4moe",
    "gpt2": "gpt-oss",
    "granite": "granitemoe",
    "grok": "llama",
    "grovemoe": "qwen3moe",
    "hunyuan": "hunyuan-moe",
    "hy_v4": "deepseek2",
    "hy_v": "hy_v3",
    "jamba": "granitehybrid",
    "kimi-linear": "qwen3next",
    "kimi": "deepseek2",
    "laguna": "mellum",  # windows in most layers, and a rotation for each kind
    "lfm2": "lfm2moe",
    "llada": "olmoe",
    "llama": "llama",
    "mamba": "granitehybrid",  # a recurrent state in attention's place
    "mimo": "gpt-oss",  # windows and sinks
    "minicpm": "granitemoe",  # constant factors
    "minimax-01": "qwen3next",
    "minimax": "minimax-m2",
    "mistral4": "deepseek2",
    "mistral": "llama",
    "nemotron": "granitehybrid",
    "olmo": "olmoe",
    "phi": "phimoe",
    "qwen2": "qwen2moe",
    "qwen35": "qwen35moe",
    "qwen3next": "qwen3next",
    "qwen3vl": "qwen3vlmoe",
    "qwen3": "qwen3moe",
    "qwen": "qwen2moe",
    "rnd1": "qwen3moe",
    "rwkv": "qwen3next",
    "smallthinker": "qwen3moe",
}
_NO_LANGUAGE_MODELS = {
    "bert": "it turns text into vectors and writes none",
    "eurobert": "it turns text into vectors and writes none",
    "gemma-embedding": "it turns text into vectors and writes none",
    "jina-bert": "it turns text into vectors and writes none",
    "modern-bert": "it turns text into vectors and writes none",
    "neo-bert": "it turns text into vectors and writes none",
    "nomic-bert": "it turns text into vectors and writes none",
    "t5encoder": "it turns text into vectors and writes none",
    "clip": "this is the image or sound half of a model; give the file of its language half",
    "whisper": "it hears speech and is no language model",
    "wavtokenizer": "it makes sound and is no language model",
}
KINDS = {
    "adapter": "merge it into its model first",
    "imatrix": "give it to pearl convert --imatrix",
    "mmproj": _NO_LANGUAGE_MODELS["clip"],
}
"""What to do with a file whose `general.type` is no model's."""


def nearest_relative(name: str, supported: Collection[str]) -> str:
    """The end of a message: the relative of architecture `name`, or what such a file is instead."""
    for start, what in _NO_LANGUAGE_MODELS.items():
        if name.startswith(start):
            return what
    known = next((relative for start, relative in _RELATIVES.items() if name.startswith(start)), None)
    if known is None:
        known = next(iter(difflib.get_close_matches(name, supported, 1, 0.5)), None)
    return f"nearest relative: {known}" if known else "none of them is a near relative"
