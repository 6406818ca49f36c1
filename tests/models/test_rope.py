"""Rotation tables against transformers' own, and on paper for the signs of each scaling."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from models.config_rope import RopeConfig
from models.rope import build_rope_table, rope_frequencies
from tests.tolerances import ROPE_ABSOLUTE

HEAD_DIM = 64
THETA = 10000.0


def hf_table(parameters: dict[str, Any], n_positions: int) -> tuple[np.ndarray, np.ndarray]:
    """cos and sin [n_positions, HEAD_DIM / 2] of transformers' rotary embedding."""
    config = transformers.LlamaConfig(
        hidden_size=2 * HEAD_DIM, num_attention_heads=2, rope_parameters={"rope_theta": THETA, **parameters}
    )
    rotary = LlamaRotaryEmbedding(config)
    cos, sin = rotary(torch.zeros(1, dtype=torch.float32), torch.arange(n_positions)[None])
    return cos[0, :, : HEAD_DIM // 2].numpy(), sin[0, :, : HEAD_DIM // 2].numpy()


CASES = {
    "none": ({"rope_type": "default"}, RopeConfig(THETA, HEAD_DIM, False)),
    "linear": (
        {"rope_type": "linear", "factor": 8.0},
        RopeConfig(THETA, HEAD_DIM, False, scaling="linear", factor=8.0),
    ),
    "yarn": (
        {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096},
        RopeConfig(THETA, HEAD_DIM, False, scaling="yarn", factor=32.0, original_context=4096),
    ),
    "yarn_not_rounded": (  # gpt-oss's
        {
            "rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096, "truncate": False,
            "beta_fast": 32.0, "beta_slow": 1.0,
        },
        RopeConfig(
            THETA, HEAD_DIM, False, scaling="yarn", factor=32.0, original_context=4096, whole_components=False
        ),
    ),
    "yarn_stated_factor": (
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "attention_factor": 1.3},
        RopeConfig(
            THETA, HEAD_DIM, False, scaling="yarn", factor=4.0, original_context=64,
            attention_factor=1.3 / (0.1 * math.log(4.0) + 1.0),
        ),
    ),
    "yarn_betas": (
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "beta_fast": 8, "beta_slow": 2},
        RopeConfig(
            THETA, HEAD_DIM, False, scaling="yarn", factor=4.0, original_context=64, beta_fast=8.0, beta_slow=2.0
        ),
    ),
}


@pytest.mark.parametrize(("parameters", "rope"), CASES.values(), ids=CASES.keys())
def test_tables_equal_transformers_beyond_the_original_context(parameters: dict[str, Any], rope: RopeConfig) -> None:
    n_positions = 6000
    cos, sin = hf_table(parameters, n_positions)
    table = build_rope_table(rope, n_positions)
    assert table.cos.dtype == table.sin.dtype == np.float32
    np.testing.assert_allclose(table.cos, cos, rtol=0, atol=ROPE_ABSOLUTE)
    np.testing.assert_allclose(table.sin, sin, rtol=0, atol=ROPE_ABSOLUTE)


def test_stored_divisors_are_llama3_scaling() -> None:
    """A file stores what divides each frequency; transformers works the same numbers out from four parameters."""
    parameters = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    cos, sin = hf_table({"rope_type": "llama3", "original_max_position_embeddings": 64, **parameters}, 600)
    rope = RopeConfig(THETA, HEAD_DIM, False)
    plain, _ = rope_frequencies(rope)
    turns = 64 / (2 * math.pi / plain)  # in the original context
    smooth = np.clip((turns - 1.0) / (4.0 - 1.0), 0.0, 1.0)
    divisors = (1.0 / (smooth + (1.0 - smooth) / 8.0)).astype(np.float32)
    table = build_rope_table(rope, 600, divisors)
    np.testing.assert_allclose(table.cos, cos, rtol=0, atol=ROPE_ABSOLUTE)
    np.testing.assert_allclose(table.sin, sin, rtol=0, atol=ROPE_ABSOLUTE)


def test_longrope_divides_by_the_list_of_the_file_and_multiplies_by_its_factor() -> None:
    """Beyond the original context transformers takes the long list; the factor it works out is stored in a file."""
    long = np.linspace(1.0, 30.0, HEAD_DIM // 2)
    parameters = {
        "rope_type": "longrope", "factor": 16.0, "original_max_position_embeddings": 64,
        "short_factor": [1.0] * (HEAD_DIM // 2), "long_factor": long.tolist(),
    }  # fmt: skip
    cos, sin = hf_table(parameters, 6000)
    factor = math.sqrt(1 + math.log(16.0) / math.log(64))
    rope = RopeConfig(THETA, HEAD_DIM, False, scaling="longrope", original_context=64, attention_factor=factor)
    table = build_rope_table(rope, 6000, long.astype(np.float32))
    np.testing.assert_allclose(table.cos, cos, rtol=0, atol=ROPE_ABSOLUTE)
    np.testing.assert_allclose(table.sin, sin, rtol=0, atol=ROPE_ABSOLUTE)


def test_linear_scaling_reads_a_position_as_a_fraction() -> None:
    plain = build_rope_table(RopeConfig(THETA, 8, True), 10)
    scaled = build_rope_table(RopeConfig(THETA, 8, True, scaling="linear", factor=4.0), 40)
    np.testing.assert_allclose(scaled.cos[::4], plain.cos, rtol=0, atol=ROPE_ABSOLUTE)
    assert (scaled.interleaved, scaled.n_rot) == (True, 8)


def test_yarn_multiplies_cos_and_sin_once() -> None:
    rope = RopeConfig(THETA, HEAD_DIM, False, scaling="yarn", factor=4.0, original_context=4096)
    table = build_rope_table(rope, 3)
    np.testing.assert_allclose(np.hypot(table.cos, table.sin), 0.1 * math.log(4.0) + 1.0, rtol=0, atol=ROPE_ABSOLUTE)


def test_an_unknown_scaling_is_refused() -> None:
    with pytest.raises(ValueError, match="dynamic"):
        rope_frequencies(RopeConfig(THETA, 8, False, scaling="dynamic"))
