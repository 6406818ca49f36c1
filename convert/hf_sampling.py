"""Sampling settings that a checkpoint recommends: `generation_config.json` to GGUF's `general.sampling.*`."""

from __future__ import annotations

from pathlib import Path

from convert.checkpoint_folder import read_json
from convert.gguf_metadata import Metadata
from models.errors import CheckpointError

_FLOATS = {
    "temperature": "general.sampling.temp",
    "top_p": "general.sampling.top_p",
    "min_p": "general.sampling.min_p",
    "repetition_penalty": "general.sampling.penalty_repeat",
}


def add_sampling(metadata: Metadata, folder: Path) -> None:
    """Store the settings the folder names; none where it names none.

    Raises CheckpointError for one that is no number.
    """
    generation = read_json(folder, "generation_config.json") or {}
    for hf_name, key in _FLOATS.items():
        value = generation.get(hf_name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise CheckpointError(f"{folder / 'generation_config.json'}: {hf_name} is {value!r}, not a number")
        metadata.f32(key, float(value))
    top_k = generation.get("top_k")
    if isinstance(top_k, int) and not isinstance(top_k, bool) and top_k >= 0:
        metadata.u32("general.sampling.top_k", top_k)
    elif top_k is not None:
        raise CheckpointError(f"{folder / 'generation_config.json'}: top_k is {top_k!r}, not a whole number from 0")
