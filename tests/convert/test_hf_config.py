"""config.json read strictly: defaults are said, what pearl does not implement is refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from convert.gguf_metadata import Metadata
from convert.hf_config import HfConfig
from models.errors import CheckpointError, UnsupportedArchitecture, UnsupportedError
from tests.convert.checkpoints import config


def read(architecture: str = "olmoe", **changes: Any) -> HfConfig:
    return HfConfig(Path("hf"), config(architecture, **changes))


def test_sizes() -> None:
    dims = read("qwen3moe", moe_intermediate_size=16, norm_topk_prob=True).dims()
    assert (dims.moe_intermediate_size, dims.intermediate_size, dims.head_dim) == (16, 32, 8)
    assert dims.norm_topk_prob is True
    assert read(head_dim=None).dims().head_dim == 8
    assert read("llama", num_experts=None, num_local_experts=6).dims().num_experts == 6


def test_rope_in_the_form_of_transformers_5() -> None:
    rope = {"rope_theta": 5e5, "rope_type": "default"}
    assert read(rope_theta=None, rope_parameters=rope).dims().rope_theta == 5e5


def test_missing_theta_takes_the_default_and_says_so() -> None:
    found = read("llama", rope_theta=None)
    assert found.dims().rope_theta == 1e6
    assert found.notes == ["config.json has no rope_theta; 1000000.0 is used"]


def test_yarn_is_written() -> None:
    metadata = Metadata()
    rope = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    read("qwen3moe", rope_scaling=rope).add_metadata(metadata)
    assert metadata.text("qwen3moe.rope.scaling.type") == "yarn"
    assert "qwen3moe.rope.scaling.original_context_length" in metadata


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"rope_scaling": {"rope_type": "longrope", "factor": 2.0}}, "rope type 'longrope'"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 2.0}}, "rope type 'llama3' is not supported for olmoe"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "mscale": 1}}, "mscale"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
    ],
)
def test_what_is_not_implemented_is_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(UnsupportedError, match=says):
        read(**changes).add_metadata(Metadata())


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"hidden_size": "32"}, "hidden_size is '32'"),
        ({"num_attention_heads": 0}, "num_attention_heads is 0"),
        ({"rms_norm_eps": True}, "rms_norm_eps is True"),
        ({"architectures": None}, "architectures"),
    ],
)
def test_bad_values_are_named(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(CheckpointError, match=says):
        read(**changes).dims()


def test_unknown_architecture_lists_the_known() -> None:
    with pytest.raises(UnsupportedArchitecture, match=r"FalconForCausalLM.*OlmoeForCausalLM"):
        read(architectures=["FalconForCausalLM"])


@pytest.mark.parametrize(
    "changes",
    [
        {"hidden_size": 10**30},
        {"num_experts_per_tok": 2**32},
        {"num_key_value_heads": 2**31},
        {"rope_theta": 1e300},
        {"rope_theta": float("nan")},
        {"rms_norm_eps": float("inf")},
    ],
)
def test_numbers_that_no_gguf_can_hold_are_refused_by_name(changes: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match=rf"config.json: {next(iter(changes))} is .*; a GGUF holds"):
        read(**changes).add_metadata(Metadata())


def test_metadata_refuses_a_number_that_its_type_cannot_hold() -> None:
    with pytest.raises(CheckpointError, match=r"general\.sampling\.temp is 1e\+300, which a GGUF FLOAT32 cannot hold"):
        Metadata().f32("general.sampling.temp", 1e300)
    with pytest.raises(CheckpointError, match=r"general\.sampling\.top_k is .*, which a GGUF UINT32 cannot hold"):
        Metadata().u32("general.sampling.top_k", 2**32)


def test_a_default_that_is_read_twice_is_said_once() -> None:
    found = read(rms_norm_eps=None)
    found.dims()
    found.add_metadata(Metadata())
    assert found.notes == ["config.json has no rms_norm_eps; 1e-05 is used"]
