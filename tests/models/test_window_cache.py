"""Layers with a sliding window keep a ring of positions: the same logits as with all of them, fewer bytes, and a limit
to how far a sequence can be rolled back.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernels.backend import Backend, KVLayer
from kernels.cpu.backend import CpuBackend
from kernels.reference.backend import ReferenceBackend
from models import layer_memory
from models.expert_store import ExpertStore
from models.gguf import GGUFModel
from models.kv_cache import KVCache
from models.layer_memory import LayerMemory
from models.loader import load_model
from models.model import Model
from models.resident import ResidentExperts
from tests.tiny_models import hf_logits, prompt, tiny_model, write_gguf
from tests.tolerances import LOGITS_RELATIVE

N_TOKENS, WINDOW, RING = 150, 6, 64
HF = tiny_model("gpt-oss", sliding_window=WINDOW)  # layers 0 and 2 have the window, layer 1 sees everything
IDS = prompt(N_TOKENS)


@pytest.fixture(autouse=True)
def short_ring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer_memory, "WINDOW_STEP", 40)


@pytest.fixture(scope="module")
def expected() -> np.ndarray:
    return hf_logits(HF, IDS)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(HF, tmp_path_factory.mktemp("tiny") / "model.gguf", "gpt-oss")


@pytest.fixture(scope="module", params=[ReferenceBackend, CpuBackend], ids=["reference", "cpu"])
def model(path: Path, request: pytest.FixtureRequest) -> Iterator[tuple[Model, ResidentExperts]]:
    backend: Backend = request.param()
    with GGUFModel.open(path) as gguf:
        model = load_model(gguf, backend)
        yield model, ResidentExperts(model, ExpertStore(gguf, model.config), backend)


def assert_near(logits: np.ndarray, expected: np.ndarray) -> None:
    assert np.abs(logits - expected).max() <= LOGITS_RELATIVE * np.abs(expected).max()


@pytest.mark.parametrize("chunk", [N_TOKENS, 59, 60, 7, 1])
def test_the_ring_is_never_missed(model: tuple[Model, ResidentExperts], expected: np.ndarray, chunk: int) -> None:
    net, experts = model
    cache = net.new_cache(N_TOKENS, "f32", "f32")
    assert [layer.k.shape[1] for layer in cache.layers] == [RING, N_TOKENS, RING]
    parts = [net.forward(IDS[i : i + chunk], cache, experts, "prefill", "all") for i in range(0, N_TOKENS, chunk)]
    assert_near(np.concatenate(parts), expected)


@pytest.mark.parametrize(
    ("family", "fields", "keys", "slots"),
    [
        ("llama", {"sliding_window": 6}, {"llama.attention.sliding_window": 6}, [RING, RING]),
        ("gemma4", {}, {}, [RING, N_TOKENS, RING, N_TOKENS]),
    ],
)
def test_rings_of_other_architectures(
    family: str, fields: dict[str, Any], keys: dict[str, Any], slots: list[int], tmp_path: Path
) -> None:
    hf, backend = tiny_model(family, **fields), CpuBackend()
    with GGUFModel.open(write_gguf(hf, tmp_path / "m.gguf", family, keys)) as gguf:
        net = load_model(gguf, backend)
        experts = ResidentExperts(net, ExpertStore(gguf, net.config), backend)
    cache, whole = net.new_cache(N_TOKENS, "f32", "f32"), hf_logits(hf, IDS)
    assert [layer.k.shape[1] for layer in cache.layers] == slots
    parts = [net.forward(IDS[i : i + 31], cache, experts, "prefill", "all") for i in range(0, N_TOKENS, 31)]
    assert_near(np.concatenate(parts), whole)


def test_bytes_are_those_of_the_rings(model: tuple[Model, ResidentExperts]) -> None:
    net, _ = model
    cache = net.new_cache(N_TOKENS)
    layers = [layer for layer in cache.layers if isinstance(layer, KVLayer)]
    stored = sum(array.nbytes for layer in layers for array in (layer.k, layer.v))
    position = 2 * 2 * 24 * 2  # 2 heads of 24 halves, keys and values
    assert stored == (RING + N_TOKENS + RING) * position
    copies = 2 * (WINDOW - 1) * position  # of what a token sees beside itself, in two layers
    assert cache.n_bytes == stored + copies + cache.rope.cos.nbytes + cache.rope.sin.nbytes
    assert cache.n_bytes == KVCache.planned_bytes(net.config, N_TOKENS)


def test_going_back_within_the_ring(model: tuple[Model, ResidentExperts], expected: np.ndarray) -> None:
    net, experts = model
    cache = net.new_cache(N_TOKENS, "f32", "f32")
    net.forward(IDS[:100], cache, experts, "prefill", "none")
    net.forward(IDS[::-1][:30].copy(), cache, experts, "prefill", "none")
    assert cache.rewindable(100) == 100
    cache.truncate(100)
    assert_near(net.forward(IDS[100:], cache, experts, "prefill", "all"), expected[100:])


def test_going_back_further_means_starting_again(model: tuple[Model, ResidentExperts]) -> None:
    net, experts = model
    cache = net.new_cache(N_TOKENS, "f32", "f32")
    net.forward(IDS, cache, experts, "prefill", "none")
    nearest = N_TOKENS - (RING - WINDOW + 1)  # the oldest position that its window needs is the oldest in the ring
    assert [cache.rewindable(n) for n in (N_TOKENS, nearest, nearest - 1, 1, 0)] == [N_TOKENS, nearest, 0, 0, 0]
    with pytest.raises(ValueError, match="not all layers"):
        cache.truncate(nearest - 1)
    cache.truncate(nearest)
    net.forward(IDS[:3], cache, experts, "prefill", "none")
    assert cache.rewindable(nearest) == nearest
    assert cache.rewindable(nearest - 1) == 0, "what was overwritten does not come back by rolling back"
    cache.truncate(0)
    net.forward(IDS[:20], cache, experts, "prefill", "none")
    assert cache.rewindable(5) == 5


@pytest.mark.parametrize("kept", [1, 3, 5, 6, 61, 66, 70])
def test_going_back_to_where_the_window_was_kept(
    model: tuple[Model, ResidentExperts], expected: np.ndarray, kept: int
) -> None:
    net, experts = model
    cache = net.new_cache(N_TOKENS, "f32", "f32")
    net.forward(IDS[:kept], cache, experts, "prefill", "none")
    cache.keep()
    for _ in range(2):
        others = IDS[::-1][: N_TOKENS - kept].copy()
        net.forward(others, cache, experts, "prefill", "none")
        assert cache.rewindable(N_TOKENS - 70) == kept
        cache.truncate(kept)
    assert_near(net.forward(IDS[kept:], cache, experts, "prefill", "all"), expected[kept:])


def test_nothing_before_a_kept_window_is_there_once_it_was_put_back(model: tuple[Model, ResidentExperts]) -> None:
    net, experts = model
    cache = net.new_cache(N_TOKENS, "f32", "f32")
    net.forward(IDS[:60], cache, experts, "prefill", "none")
    cache.keep()
    assert cache.rewindable(50) == 50
    net.forward(IDS[60:], cache, experts, "prefill", "none")
    cache.truncate(60)
    net.forward(IDS[:2], cache, experts, "prefill", "none")
    assert [cache.rewindable(n) for n in (62, 61, 60, 59, 50)] == [62, 61, 60, 0, 0]


def test_a_kept_window_is_forgotten_with_the_sequence_that_it_was_of(model: tuple[Model, ResidentExperts]) -> None:
    net, experts = model
    cache = net.new_cache(N_TOKENS, "f32", "f32")
    net.forward(IDS[:50], cache, experts, "prefill", "none")
    cache.keep()
    cache.truncate(40)
    net.forward(IDS[:100], cache, experts, "prefill", "none")
    assert cache.rewindable(50) == 0


class FailsOnce(ResidentExperts):
    armed = False

    def compute(self, layer, a, routing):
        if self.armed and layer == 2:
            raise OSError("read failed")
        return super().compute(layer, a, routing)


def test_a_failed_call_that_overwrote_the_window_is_noticed(path: Path, expected: np.ndarray) -> None:
    backend = CpuBackend()
    with GGUFModel.open(path) as gguf:
        net = load_model(gguf, backend)
        experts = FailsOnce(net, ExpertStore(gguf, net.config), backend)
    cache = net.new_cache(N_TOKENS, "f32", "f32")
    net.forward(IDS[:50], cache, experts, "prefill", "none")
    experts.armed = True
    with pytest.raises(OSError, match="read failed"):
        net.forward(IDS[50:], cache, experts, "prefill", "none")
    experts.armed = False
    assert (cache.length, cache.rewindable(50)) == (50, 0)
    with pytest.raises(ValueError, match="truncate first"):
        net.forward(IDS[50:], cache, experts, "prefill", "none")
    cache.truncate(0)
    assert_near(net.forward(IDS, cache, experts, "prefill", "all"), expected)


def test_a_layer_without_keys_holds_its_state_and_one_copy_of_it() -> None:
    memory = LayerMemory(0, 0, 0, state=((3, 64), (2, 5, 7)))
    assert memory.n_bytes(1000, "f16", "f16") == 2 * 4 * (3 * 64 + 2 * 5 * 7)


@pytest.mark.parametrize(("window", "capacity", "slots"), [(0, 900, 900), (6, 64, 64), (6, 65, 64), (128, 4096, 192)])
def test_slots_of_a_layer(window: int, capacity: int, slots: int) -> None:
    assert LayerMemory(2, 24, 24, window).slots(capacity) == slots
