"""What a hybrid model keeps of a sequence: bytes, the copy it can go back to, and what a failed call costs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from kernels.reference.backend import ReferenceBackend
from models.config import ModelConfig
from models.expert_store import ExpertStore
from models.gguf import GGUFModel
from models.kv_cache import KVCache, RecurrentLayer
from models.loader import load_model
from models.model import Model
from models.resident import ResidentExperts
from tests.tiny_models import hf_logits, prompt, tiny_model, write_gguf
from tests.tolerances import LOGITS_RELATIVE

HF = tiny_model("qwen35moe")
IDS = prompt(20)
Net = tuple[Model, ResidentExperts]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(HF, tmp_path_factory.mktemp("hybrid") / "model.gguf", "qwen35moe")


@pytest.fixture
def net(path: Path) -> Iterator[Net]:
    backend = ReferenceBackend()
    with GGUFModel.open(path) as gguf:
        model = load_model(gguf, backend)
        yield model, ResidentExperts(model, ExpertStore(gguf, model.config), backend)


def feed(net: Net, cache: KVCache, ids: np.ndarray) -> np.ndarray:
    logits = net[0].forward(ids, cache, net[1], "prefill")
    assert logits is not None
    return logits


def assert_is_the_whole_prompts(logits: np.ndarray, ids: np.ndarray) -> None:
    expected = hf_logits(HF, ids)[-1]
    assert np.abs(logits - expected).max() <= LOGITS_RELATIVE * np.abs(expected).max()


def test_planned_bytes_are_those_of_the_arrays(net: Net) -> None:
    cache, config = net[0].new_cache(10, "f32", "f32"), net[0].config
    recurrent = [layer for layer in cache.layers if isinstance(layer, RecurrentLayer)]
    attention = [layer for layer in cache.layers if not isinstance(layer, RecurrentLayer)]
    assert (len(recurrent), len(attention)) == (3, 1)
    arrays = [array for layer in recurrent for array in (*layer.arrays, *layer.kept)]
    arrays += [array for layer in attention for array in (layer.k, layer.v)] + [cache.rope.cos, cache.rope.sin]
    assert cache.n_bytes == sum(array.nbytes for array in arrays) == KVCache.planned_bytes(config, 10, "f32", "f32")
    assert KVCache.bytes_per_token(config, "f32", "f32") == 2 * 2 * 24 * 4  # one layer, two heads, keys and values
    state = 4 * ((4 - 1) * (2 * 2 * 16 + 4 * 16) + 4 * 16 * 16)
    assert sum(array.nbytes for layer in recurrent for array in layer.arrays) == 3 * state


def test_a_longer_context_makes_the_state_no_larger(net: Net) -> None:
    config = net[0].config
    growth = KVCache.planned_bytes(config, 200) - KVCache.planned_bytes(config, 100)
    assert growth == 100 * (KVCache.bytes_per_token(config) + 4 * config.rope.n_rot)


def test_without_a_copy_only_the_beginning_is_left(net: Net) -> None:
    cache = net[0].new_cache(32, "f32", "f32")
    feed(net, cache, IDS[:9])
    assert [cache.rewindable(n) for n in (9, 8, 1, 0)] == [9, 0, 0, 0]
    with pytest.raises(ValueError, match="not all layers"):
        cache.truncate(8)
    cache.truncate(0)
    assert_is_the_whole_prompts(feed(net, cache, IDS[3:12]), IDS[3:12])


def test_the_copy_can_be_come_back_to_again_and_again(net: Net) -> None:
    cache = net[0].new_cache(32, "f32", "f32")
    feed(net, cache, IDS[:9])
    cache.keep()
    for other in (IDS[::-1][:6].copy(), IDS[2:4], IDS[9:]):
        feed(net, cache, other)
        assert [cache.rewindable(n) for n in (cache.length, cache.length - 1, 9, 8)] == [cache.length, 9, 9, 0]
        cache.truncate(9)
    whole = feed(net, cache, IDS[9:])
    assert_is_the_whole_prompts(whole, IDS)
    cache.truncate(9)
    np.testing.assert_array_equal(feed(net, cache, IDS[9:]), whole)


def test_the_newest_copy_counts_and_a_new_sequence_has_none(net: Net) -> None:
    cache = net[0].new_cache(32, "f32", "f32")
    feed(net, cache, IDS[:5])
    cache.keep()
    feed(net, cache, IDS[5:9])
    cache.keep()
    feed(net, cache, IDS[9:12])
    assert [cache.rewindable(n) for n in (11, 8, 5)] == [9, 0, 0]
    cache.truncate(0)
    feed(net, cache, IDS[:12])
    assert cache.rewindable(11) == 0


class FailingExperts(ResidentExperts):
    """Fails in the third layer, when two have gone on already."""

    fail = True

    def compute(self, layer, a, routing):  # type: ignore[no-untyped-def]
        if layer == 2 and self.fail:
            raise OSError("read failed")
        return super().compute(layer, a, routing)


@pytest.mark.parametrize("kept", [True, False])
def test_a_failed_call_costs_the_way_back_to_the_copy(net: Net, path: Path, kept: bool) -> None:
    model, cache = net[0], net[0].new_cache(32, "f32", "f32")
    feed(net, cache, IDS[:9])
    if kept:
        cache.keep()
    with GGUFModel.open(path) as gguf:
        failing = FailingExperts(model, ExpertStore(gguf, ModelConfig.from_gguf(gguf)), ReferenceBackend())
        with pytest.raises(OSError, match="read failed"):
            model.forward(IDS[9:], cache, failing, "prefill")
    assert cache.length == 9
    assert cache.rewindable(9) == (9 if kept else 0)
    if not kept:
        with pytest.raises(ValueError, match="truncate first"):
            feed(net, cache, IDS[9:])
    cache.truncate(cache.rewindable(9))
    assert_is_the_whole_prompts(feed(net, cache, IDS[cache.length :]), IDS)
