"""Loading: every tensor once, none missing, none left over, none of another shape; experts stay in the file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kernels.reference.backend import ReferenceBackend
from models.errors import GGUFError, UnsupportedArchitecture
from models.expert_store import ExpertStore
from models.gguf import GGUFModel
from models.loader import load_model, non_expert_bytes
from models.weights import ALIGNMENT
from tests import tiny_models
from tests.tiny_models import tiny_model, write_gguf

HF = tiny_model("olmoe")


class CountingModel(GGUFModel):
    """Remembers the names and bytes that were read."""

    def read_bytes(self, file_index: int, offset: int, out: np.ndarray, what: str) -> None:
        self.reads = getattr(self, "reads", [])
        self.reads.append((offset, out.size))
        super().read_bytes(file_index, offset, out, what)


def write_changed(path: Path, monkeypatch: pytest.MonkeyPatch, change) -> Path:
    """The tiny file with its list of (name, array) tensors passed through `change`."""
    tensors = dict(tiny_models.gguf_tensors(HF, "olmoe"))
    change(tensors)
    monkeypatch.setattr(tiny_models, "gguf_tensors", lambda *_: tensors.items())
    return write_gguf(HF, path, "olmoe")


def load_error(path: Path, kind: type[Exception] = GGUFError) -> str:
    with GGUFModel.open(path) as gguf, pytest.raises(kind) as caught:
        load_model(gguf, ReferenceBackend())
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_every_byte_that_is_not_an_experts_is_read_once(tmp_path: Path) -> None:
    with CountingModel.open(write_gguf(HF, tmp_path / "m.gguf", "olmoe")) as gguf:
        load_model(gguf, ReferenceBackend())
        expected = sorted((info.offset, info.n_bytes) for name, info in gguf.tensors.items() if "_exps" not in name)
        assert sorted(gguf.reads) == expected


def test_weights_lie_in_one_aligned_arena_from_the_backend(tmp_path: Path) -> None:
    arenas = []

    class AllocatingBackend(ReferenceBackend):
        def allocate(self, n_bytes: int) -> np.ndarray:
            arenas.append(np.zeros(n_bytes + ALIGNMENT, np.uint8))
            start = -arenas[-1].ctypes.data % ALIGNMENT
            return arenas[-1][start : start + n_bytes]

    with GGUFModel.open(write_gguf(HF, tmp_path / "m.gguf", "olmoe")) as gguf:
        model = load_model(gguf, AllocatingBackend())
        assert len(arenas) == 1
        assert arenas[0].size == non_expert_bytes(gguf, model.config) + ALIGNMENT
    for weight in (model.token_embd, model.output, model.blk[1].attn.attn_k, model.blk[0].ffn.router.ffn_gate_inp):
        assert np.shares_memory(weight.data, arenas[0])
        assert weight.data.ctypes.data % ALIGNMENT == 0


@pytest.mark.parametrize(("expanded", "expansions"), [(False, 0), (True, 3)])
def test_bytes_of_latent_attention_in_both_layouts(tmp_path: Path, expanded: bool, expansions: int) -> None:
    """The older layout costs a plain copy of attn_k_b a layer, and the byte count knows it."""
    path = write_gguf(tiny_model("deepseek2"), tmp_path / "m.gguf", "deepseek2", expanded=expanded)
    with GGUFModel.open(path) as gguf:
        model = load_model(gguf, ReferenceBackend())
        stored = sum(-(-t.n_bytes // ALIGNMENT) * ALIGNMENT for n, t in gguf.tensors.items() if "_exps" not in n)
        k_b_bytes = sum(weight.n_bytes for weight in model.blk[0].attn.attn_k_b)
        assert non_expert_bytes(gguf, model.config) == stored + expansions * k_b_bytes


def test_the_gate_of_a_shared_expert_is_a_vector_or_a_matrix_of_one_row(tmp_path: Path, monkeypatch) -> None:
    """Converters have written it as [n_embd] and as [n_embd, 1]."""
    model, name = tiny_model("qwen2moe"), "blk.0.ffn_gate_inp_shexp.weight"
    tensors = dict(tiny_models.gguf_tensors(model, "qwen2moe"))
    monkeypatch.setattr(tiny_models, "gguf_tensors", lambda *_: tensors.items())
    loaded = []
    for ndim in (1, 2):
        tensors[name] = tensors[name].reshape(-1) if ndim == 1 else tensors[name].reshape(1, -1)
        with GGUFModel.open(write_gguf(model, tmp_path / f"{ndim}.gguf", "qwen2moe")) as gguf:
            assert len(gguf.tensors[name].shape) == ndim
            loaded.append(np.array(load_model(gguf, ReferenceBackend()).blk[0].ffn.shared.ffn_gate_inp_shexp.data))
    np.testing.assert_array_equal(*loaded)


def test_a_tied_table_is_stored_once(tmp_path: Path) -> None:
    with GGUFModel.open(
        write_gguf(tiny_model("olmoe", tie_word_embeddings=True), tmp_path / "m.gguf", "olmoe")
    ) as gguf:
        assert "output.weight" not in gguf.tensors
        model = load_model(gguf, ReferenceBackend())
    assert model.output is model.token_embd


@pytest.mark.parametrize("name", ["token_embd.weight", "blk.1.attn_k_norm.weight", "blk.0.ffn_gate_inp.weight"])
def test_a_missing_tensor_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    path = write_changed(tmp_path / "m.gguf", monkeypatch, lambda tensors: tensors.pop(name))
    message = load_error(path)
    assert name in message
    assert "m.gguf" in message


def test_left_over_tensors_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    extra = {f"blk.0.zz_{i}.weight": np.zeros(3, np.float32) for i in range(6)}
    message = load_error(write_changed(tmp_path / "m.gguf", monkeypatch, lambda tensors: tensors.update(extra)))
    assert "no use for blk.0.zz_0.weight" in message
    assert "2 more" in message


def test_a_tensor_of_another_shape_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def widen(tensors: dict[str, np.ndarray]) -> None:
        tensors["blk.1.attn_v.weight"] = np.zeros((48, 64), np.float32)

    message = load_error(write_changed(tmp_path / "m.gguf", monkeypatch, widen))
    assert "'blk.1.attn_v.weight' has shape [64, 48]" in message
    assert "[64, 32]" in message


@pytest.mark.parametrize("family", ["glm4moe", "deepseek2_v3"])
def test_layers_for_predicting_several_tokens_stay_in_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str
) -> None:
    """The last of three stated layers is such a one: its tensors, experts too, are neither read nor missed."""
    hf, architecture = tiny_model(family, num_hidden_layers=2), tiny_models.architecture_of(family)
    tensors = dict(tiny_models.gguf_tensors(hf, architecture))
    extra = {name.replace("blk.1.", "blk.2."): array for name, array in tensors.items() if name.startswith("blk.1.")}
    extra["blk.2.nextn.eh_proj.weight"] = np.zeros((64, 128), np.float32)
    monkeypatch.setattr(tiny_models, "gguf_tensors", lambda *_: (tensors | extra).items())
    keys = {f"{architecture}.block_count": 3, f"{architecture}.nextn_predict_layers": 1}
    path = write_gguf(hf, tmp_path / "m.gguf", family, keys)
    with CountingModel.open(path) as gguf:
        model = load_model(gguf, ReferenceBackend())
        store = ExpertStore(gguf, model.config)
        read = {offset for offset, _ in gguf.reads}
        assert not any(gguf.tensors[name].offset in read for name in extra)
    assert (len(model.blk), store.moe_layers()) == (2, [1])


def test_an_unknown_architecture_is_refused_with_the_list(tmp_path: Path) -> None:
    path = write_gguf(HF, tmp_path / "m.gguf", "falcon")
    message = load_error(path, UnsupportedArchitecture)
    for name in ("falcon", "llama", "olmoe", "qwen3moe"):
        assert name in message
