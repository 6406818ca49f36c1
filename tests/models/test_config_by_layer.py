"""Configs whose layers differ: which have a sliding window, which a convolution, and heads of two shapes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models.config import ModelConfig
from models.errors import GGUFError, UnsupportedError
from models.gguf import GGUFModel
from models.layer_memory import LayerMemory
from tests.tiny_models import hf_logits, prompt, tiny_model, write_gguf

Read = Callable[..., ModelConfig]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    def config(family: str, **changes: Any) -> ModelConfig:
        """Config of a tiny model; `changes` are keys without the architecture, dots as double underscores."""
        keys = {f"{family}.{name.replace('__', '.')}": value for name, value in changes.items()}
        with GGUFModel.open(write_gguf(tiny_model(family), tmp_path / "m.gguf", family, keys)) as gguf:
            return ModelConfig.from_gguf(gguf)

    return config


def test_gpt_oss_windows_every_other_layer_unless_the_file_says_which(read: Read) -> None:
    config = read("gpt-oss")
    assert [config.window_of(layer) for layer in range(3)] == [6, 0, 6]
    assert any(line.startswith("gpt-oss.attention.sliding_window_pattern = 2") for line in config.defaults_used)
    assert any(line.startswith("gpt-oss.swiglu_clamp_exp = 7.0") for line in config.defaults_used)
    every_third = read("gpt-oss", attention__sliding_window_pattern=3)
    assert [every_third.window_of(layer) for layer in range(3)] == [6, 6, 0]
    stated = read("gpt-oss", attention__sliding_window_pattern=[False, True, True], swiglu_clamp_exp=3.0)
    assert ([stated.window_of(layer) for layer in range(3)], stated.swiglu_limit) == ([0, 6, 6], 3.0)


@pytest.mark.parametrize("pattern", [0, [True], "all"])
def test_a_pattern_that_says_nothing_about_some_layer_is_refused(read: Read, pattern: Any) -> None:
    with pytest.raises(GGUFError, match=r"sliding_window_pattern.*3 layers"):
        read("gpt-oss", attention__sliding_window_pattern=pattern)


def test_lfm2_keeps_keys_in_some_layers_and_inputs_in_the_others(read: Read) -> None:
    conv = LayerMemory(0, 0, 0, state=((3, 64),))
    assert read("lfm2moe").layer_memory == (conv, LayerMemory(2, 16, 16), conv, LayerMemory(2, 16, 16))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"shortconv__l_cache": 1}, "shortconv.l_cache is 1"),
        ({"attention__head_count_kv": [0, 2, 0]}, "head_count_kv"),
        ({"attention__head_count_kv": [0, 2, 0, 4]}, "one number of heads"),
        ({"attention__head_count_kv": [0, 0, 0, 0]}, "one number of heads"),
    ],
)
def test_lfm2_layers_that_cannot_be(read: Read, changes: dict[str, Any], says: str) -> None:
    with pytest.raises(GGUFError, match=says):
        read("lfm2moe", **changes)


def test_granite_keeps_keys_in_some_layers_and_states_in_the_others(read: Read) -> None:
    state = LayerMemory(0, 0, 0, state=((3, 128 + 2 * 2 * 24), (4, 24, 32)))
    config = read("granitehybrid")
    assert config.layer_memory == (state, LayerMemory(2, 16, 16), state, state)
    assert (config.rope.scaling, config.recurrent_ops) == ("off", ("causal_conv", "selective_scan"))
    assert read("granitehybrid", rope__scaling__finetuned=True).rope.scaling == "none"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"ssm__conv_kernel": 1}, "ssm.conv_kernel 1"),
        ({"ssm__state_size": 0}, "ssm.state_size 0"),
        ({"ssm__group_count": 3}, "4 heads over 3 groups"),
        ({"ssm__inner_size": 127}, "4 heads in an ssm.inner_size of 127"),
        ({"attention__head_count_kv": [0, 2, 4, 0]}, "one number of heads"),
    ],
)
def test_mamba_layers_that_cannot_be(read: Read, changes: dict[str, Any], says: str) -> None:
    with pytest.raises(GGUFError, match=says):
        read("granitehybrid", **changes)


def test_gemma4_has_heads_and_rotations_of_two_kinds(read: Read) -> None:
    config = read("gemma4")
    narrow, wide = LayerMemory(2, 24, 24, window=6), LayerMemory(1, 32, 32)
    assert config.layer_memory == (narrow, wide, narrow, wide)
    assert (config.rope.theta, config.rope.n_rot) == (1e6, 32)
    assert config.rope_window is not None
    assert (config.rope_window.theta, config.rope_window.n_rot) == (1e4, 24)
    assert (config.attention_scale, config.embedding_scale, config.logit_softcap) == (1.0, 8.0, 3.0)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"attention__head_count_kv": [2, 1, 2]}, "3 layers of 4"),
        ({"attention__head_count_kv": [3, 1, 2, 1]}, "4 heads do not divide"),
        ({"attention__head_count_kv": [0, 1, 2, 1]}, "do not divide"),
        ({"rope__dimension_count_swa": 26}, "heads of 24 and 24 with 26 rotated"),
        ({"attention__value_length_swa": 32}, "heads of 24 and 32"),
    ],
)
def test_gemma4_heads_that_cannot_be(read: Read, changes: dict[str, Any], says: str) -> None:
    with pytest.raises(GGUFError, match=says):
        read("gemma4", **changes)


@pytest.mark.parametrize("key", ["attention__shared_kv_layers", "embedding_length_per_layer_input"])
def test_gemma4_without_experts_alone_knows_is_refused(read: Read, key: str) -> None:
    with pytest.raises(UnsupportedError, match=key.replace("__", ".")):
        read("gemma4", **{key: 4})


def test_phimoe_scales_by_the_lists_of_the_file(read: Read) -> None:
    rope = read("phimoe").rope
    assert (rope.scaling, rope.original_context) == ("longrope", 16)
    assert rope.attention_factor == pytest.approx(1.2)
    assert read("phimoe").router.gating == "sparsemixer"


@pytest.mark.parametrize("k", [1, 3, 5])
def test_phimoe_takes_two_experts_because_its_rule_gives_no_more_and_no_fewer(read: Read, k: int) -> None:
    """SparseMixer is a rule for two. transformers does not even look at the number, so no other one has a meaning that
    could be computed.
    """
    ids = prompt(5)
    np.testing.assert_array_equal(
        hf_logits(tiny_model("phimoe", num_experts_per_tok=k), ids), hf_logits(tiny_model("phimoe"), ids)
    )
    with pytest.raises(UnsupportedError, match=rf"{k} experts a token; .*\(sparsemixer\) is for 2"):
        read("phimoe", expert_used_count=k)


@pytest.mark.parametrize(("family", "key", "value"), [
    ("gpt-oss", "swiglu_clamp_exp", -7.0),
    ("gpt-oss", "swiglu_clamp_exp", 0.0),
    ("gpt-oss", "attention.sliding_window", 0),
    ("gemma4", "attention.sliding_window", 0),
])  # fmt: skip
def test_a_clamp_or_window_of_nothing_is_refused(read: Read, family: str, key: str, value: float) -> None:
    with pytest.raises(GGUFError, match=r"is -?[0-9.]+; .*must be above 0"):
        read(family, **{key: value})


def test_ernie_has_experts_in_every_layer_from_the_first(read: Read) -> None:
    assert read("ernie4_5-moe").moe_layers == (1, 2)
    with pytest.raises(UnsupportedError, match=r"interleave_moe_layer_step' = '2' is not implemented"):
        read("ernie4_5-moe", interleave_moe_layer_step=2)


def test_ernie_shared_width_is_stated_or_so_many_experts(read: Read) -> None:
    assert read("ernie4_5-moe").shared_intermediate_size == 64
    config = read("ernie4_5-moe", expert_shared_feed_forward_length=None, expert_shared_count=3)
    assert config.shared_intermediate_size == 96
    assert any("expert_shared_feed_forward_length = 96 (expert_shared_count" in line for line in config.defaults_used)
