"""Configs of the hybrid architectures: which layers have a delta net, what may be left out, what cannot be; and the
layers that such files carry at their end for predicting several tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernels.reference.backend import ReferenceBackend
from models.config import ModelConfig
from models.delta_net import grouped_rows
from models.errors import GGUFError, UnsupportedError
from models.expert_store import ExpertStore
from models.gguf import GGUFModel
from models.layer_memory import LayerMemory
from models.loader import load_model
from models.resident import ResidentExperts
from tests import tiny_models
from tests.tiny_models import hf_logits, prompt, tiny_model, write_gguf
from tests.tolerances import LOGITS_RELATIVE

Read = Callable[..., ModelConfig]
HF = tiny_model("qwen35moe")


@pytest.fixture
def read(tmp_path: Path) -> Read:
    def config(**changes: Any) -> ModelConfig:
        """Config of a tiny qwen35moe; `changes` are keys without the architecture, dots as double underscores."""
        keys = {f"qwen35moe.{name.replace('__', '.')}": value for name, value in changes.items()}
        with GGUFModel.open(write_gguf(HF, tmp_path / "m.gguf", "qwen35moe", keys)) as gguf:
            return ModelConfig.from_gguf(gguf)

    return config


def test_delta_nets_and_attention_keep_what_is_theirs(read: Read) -> None:
    config = read()
    net = config.delta_net
    assert net is not None
    assert (net.conv_width, net.value_width) == (2 * 2 * 16 + 4 * 16, 64)
    state = LayerMemory(0, 0, 0, state=((3, 128), (4, 16, 16)))
    assert config.layer_memory == (state, state, LayerMemory(2, 24, 24), state)
    assert config.state_bytes == 3 * 4 * (3 * 128 + 4 * 16 * 16)
    assert config.router.norm_topk_prob
    assert not [line for line in config.defaults_used if "recurrent" in line or "interval" in line]


@pytest.mark.parametrize(
    ("interval", "expected"), [(None, [True, True, True, False]), (2, [True, False, True, False]), (1, [False] * 4)]
)
def test_without_a_list_every_so_many_layers_have_attention(
    read: Read, interval: int | None, expected: list[bool]
) -> None:
    config = read(attention__recurrent_layers=None, full_attention_interval=interval)
    assert config.delta_net is not None
    assert list(config.delta_net.layers) == expected
    noted = [line for line in config.defaults_used if line.startswith("qwen35moe.full_attention_interval = 4")]
    assert bool(noted) == (interval is None)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"ssm__conv_kernel": 1}, "ssm.conv_kernel 1"),
        ({"ssm__group_count": 3}, "4 value heads over 3 key heads"),
        ({"ssm__group_count": 0}, "4 value heads over 0 key heads"),
        ({"ssm__inner_size": 63}, "4 heads in an ssm.inner_size of 63"),
        ({"ssm__state_size": 0}, "ssm.state_size 0"),
        ({"ssm__time_step_rank": None}, "'qwen35moe.ssm.time_step_rank' is missing"),
        ({"attention__recurrent_layers": [True, False]}, "speaks of 2 layers of 4"),
        ({"attention__recurrent_layers": [1, 0, 1, 0]}, "must be a bool"),
        ({"attention__recurrent_layers": None, "full_attention_interval": 0}, "full_attention_interval is 0"),
        ({"rope__dimension_count": None}, "'qwen35moe.rope.dimension_count' is missing"),
    ],
)
def test_sizes_that_cannot_be_are_refused(read: Read, changes: dict[str, Any], says: str) -> None:
    with pytest.raises(GGUFError, match=says):
        read(**changes)


def test_keys_that_would_change_the_maths_are_refused(read: Read) -> None:
    with pytest.raises(UnsupportedError, match=r"ssm\.dt_b_c_rms"):
        read(ssm__dt_b_c_rms=True)


def test_rows_of_groups_by_hand() -> None:
    assert grouped_rows(2, (1, 2)).tolist() == [0, 3, 1, 2, 4, 5]
    assert grouped_rows(3, (1,)).tolist() == [0, 1, 2]


def test_layers_that_look_ahead_are_not_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As llama.cpp's converter writes them: counted in block_count, attention layers, and tensors of their own."""
    plain = tiny_models.gguf_tensors

    def with_a_layer_more(*arguments: Any) -> Any:
        tensors = list(plain(*arguments))
        copied = [(name.replace("blk.2.", "blk.4."), array) for name, array in tensors if name.startswith("blk.2.")]
        own = [(f"blk.4.nextn.{name}.weight", np.ones((64,), np.float32)) for name in ("enorm", "hnorm")]
        return [*tensors, *copied, *own, ("blk.4.nextn.eh_proj.weight", np.ones((64, 128), np.float32))]

    monkeypatch.setattr(tiny_models, "gguf_tensors", with_a_layer_more)
    keys = {
        "qwen35moe.block_count": 5,
        "qwen35moe.nextn_predict_layers": 1,
        "qwen35moe.attention.recurrent_layers": [True, True, False, True, False],
    }
    path, backend, ids = write_gguf(HF, tmp_path / "m.gguf", "qwen35moe", keys), ReferenceBackend(), prompt(9)
    with GGUFModel.open(path) as gguf:
        model = load_model(gguf, backend)
        assert (model.config.num_layers, model.config.unused_layers) == (4, 1)
        experts = ResidentExperts(model, ExpertStore(gguf, model.config), backend)
        logits = model.forward(ids, model.new_cache(9, "f32", "f32"), experts, "prefill", "all")
    expected = hf_logits(HF, ids)
    assert logits is not None
    assert np.abs(logits - expected).max() <= LOGITS_RELATIVE * np.abs(expected).max()
