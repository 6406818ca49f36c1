"""The cache's capacity, roll back, types and byte count; and that a model refuses what does not fit in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from kernels.reference.backend import ReferenceBackend
from models.errors import UsageError
from models.expert_store import ExpertStore
from models.gguf import GGUFModel
from models.kv_cache import KVCache
from models.loader import load_model
from models.model import Model
from models.resident import ResidentExperts
from tests.tiny_models import hf_logits, prompt, tiny_model, write_gguf
from tests.tolerances import KV_F16_RELATIVE, KV_Q8_0_RELATIVE

HF = tiny_model("qwen3moe", head_dim=32)  # heads that hold whole q8_0 blocks


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(HF, tmp_path_factory.mktemp("tiny") / "model.gguf", "qwen3moe")


@pytest.fixture
def model(path: Path) -> Iterator[tuple[Model, ResidentExperts]]:
    backend = ReferenceBackend()
    with GGUFModel.open(path) as gguf:
        model = load_model(gguf, backend)
        yield model, ResidentExperts(model, ExpertStore(gguf, model.config), backend)


NARROW = [
    ("f16", "f16", KV_F16_RELATIVE),
    ("f32", "f16", KV_F16_RELATIVE),
    ("q8_0", "q8_0", KV_Q8_0_RELATIVE),
    ("q8_0", "f16", KV_Q8_0_RELATIVE),
    ("f16", "q8_0", KV_Q8_0_RELATIVE),
]


@pytest.mark.parametrize(("k_dtype", "v_dtype", "tolerance"), NARROW)
def test_narrow_types_stay_near_and_differ(
    model: tuple[Model, ResidentExperts], k_dtype: str, v_dtype: str, tolerance: float
) -> None:
    net, experts = model
    ids = prompt(24)
    logits = net.forward(ids, net.new_cache(24, k_dtype, v_dtype), experts, "prefill", "all")
    exact = net.forward(ids, net.new_cache(24, "f32", "f32"), experts, "prefill", "all")
    error = np.abs(logits - exact).max() / np.abs(exact).max()
    assert 0 < error <= tolerance


def test_f16_is_the_default(model: tuple[Model, ResidentExperts]) -> None:
    assert {(layer.k_dtype, layer.v_dtype) for layer in model[0].new_cache(4).layers} == {("f16", "f16")}


HEAD_BYTES = {"f32": 128, "f16": 64, "q8_0": 34}


@pytest.mark.parametrize("k_dtype", HEAD_BYTES)
@pytest.mark.parametrize("v_dtype", HEAD_BYTES)
def test_bytes_are_those_of_the_arrays(model: tuple[Model, ResidentExperts], k_dtype: str, v_dtype: str) -> None:
    net, _ = model
    cache = net.new_cache(10, k_dtype, v_dtype)
    per_token = 2 * 2 * (HEAD_BYTES[k_dtype] + HEAD_BYTES[v_dtype])  # 2 layers, 2 key/value heads
    assert KVCache.bytes_per_token(net.config, k_dtype, v_dtype) == per_token
    arrays = [array for layer in cache.layers for array in (layer.k, layer.v)] + [cache.rope.cos, cache.rope.sin]
    assert cache.n_bytes == sum(array.nbytes for array in arrays)


def test_types_that_cannot_be_stored_are_named(model: tuple[Model, ResidentExperts]) -> None:
    net, _ = model
    with pytest.raises(UsageError, match="'q4_0' is not supported; supported: f32, f16, q8_0"):
        net.new_cache(4, "q4_0", "q4_0")
    with pytest.raises(UsageError, match="'q4_0' is not supported"):
        net.new_cache(4, "f16", "q4_0")
    with pytest.raises(ValueError, match="0 positions"):
        net.new_cache(0)


def test_q8_0_needs_whole_blocks(tmp_path: Path) -> None:
    path = write_gguf(tiny_model("qwen3moe", head_dim=24), tmp_path / "m.gguf", "qwen3moe")
    with GGUFModel.open(path) as gguf, pytest.raises(UsageError, match="multiple of 32, not 24"):
        load_model(gguf, ReferenceBackend()).new_cache(4, "q8_0", "q8_0")


def test_truncate_refuses_what_is_not_there(model: tuple[Model, ResidentExperts]) -> None:
    net, experts = model
    cache = net.new_cache(8)
    net.forward(prompt(5), cache, experts, "prefill", "none")
    cache.truncate(5)
    cache.truncate(2)
    assert cache.length == 2
    for length in (3, -1):
        with pytest.raises(ValueError, match="holds 2 positions"):
            cache.truncate(length)


def test_the_last_position_is_usable_and_one_more_is_refused(model: tuple[Model, ResidentExperts]) -> None:
    net, experts = model
    ids, cache = prompt(8), net.new_cache(8, "f32", "f32")
    net.forward(ids[:7], cache, experts, "prefill", "none")
    last = net.forward(ids[7:], cache, experts, "decode")
    expected = hf_logits(HF, ids)[-1]
    assert last.argmax() == expected.argmax()
    with pytest.raises(ValueError, match=r"8 \+ 1 tokens in a KV cache of 8"):
        net.forward(ids[:1], cache, experts, "decode")
    assert cache.length == 8


class FailingExperts(ResidentExperts):
    """Fails in the second layer; counts calls of `end`."""

    ended = 0

    def compute(self, layer, a, routing):
        if layer == 1:
            raise OSError("read failed")
        return super().compute(layer, a, routing)

    def end(self) -> None:
        self.ended += 1


def test_a_failed_call_leaves_the_length_and_ends_the_provider(path: Path) -> None:
    backend, ids = ReferenceBackend(), prompt(6)
    with GGUFModel.open(path) as gguf:
        net = load_model(gguf, backend)
        store = ExpertStore(gguf, net.config)
        failing, experts = FailingExperts(net, store, backend), ResidentExperts(net, store, backend)
    cache = net.new_cache(8, "f32", "f32")
    with pytest.raises(OSError, match="read failed"):
        net.forward(ids, cache, failing, "prefill")
    assert (cache.length, failing.ended) == (0, 1)
    again = net.forward(ids, cache, experts, "prefill")
    np.testing.assert_array_equal(again, net.forward(ids, net.new_cache(8, "f32", "f32"), experts, "prefill"))


@pytest.mark.parametrize(("which", "shape"), [("last", (97,)), ("all", (3, 97))])
def test_logits_that_are_asked_for(model: tuple[Model, ResidentExperts], which: str, shape: tuple[int, ...]) -> None:
    net, experts = model
    out = net.forward(prompt(3), net.new_cache(3), experts, "prefill", which)
    assert (out.shape, out.dtype) == (shape, np.float32)


def test_no_logits_and_wrong_wishes(model: tuple[Model, ResidentExperts]) -> None:
    net, experts = model
    assert net.forward(prompt(3), net.new_cache(3), experts, "prefill", "none") is None
    with pytest.raises(ValueError, match="'first'"):
        net.forward(prompt(3), net.new_cache(3), experts, "prefill", "first")
    with pytest.raises(ValueError, match="at least one token"):
        net.forward(np.zeros(0, np.int64), net.new_cache(3), experts, "prefill")
