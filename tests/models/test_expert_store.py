"""Where experts lie: equal bytes from every layout, positions that follow the file, what is missing named in full."""

from dataclasses import replace

import numpy as np
import pytest

from kernels.quant_types import QuantType, row_bytes
from models.config import ModelConfig
from models.errors import GGUFError, ReadFailure
from models.expert_store import LINEARS, Chunk, ExpertStore, Span, is_expert_tensor
from models.gguf import GGUFModel
from tests.tiny_gguf import TinyMoE, TinyTensor, f32, tiny_moe, write_gguf, write_split

LAYOUTS = ["stacked", "per-expert", "fused"]


def open_store(model: TinyMoE, path) -> ExpertStore:
    gguf = GGUFModel.open(model.write(path))
    return ExpertStore(gguf, ModelConfig.from_gguf(gguf))


def read(store: ExpertStore, layer: int, expert: int, linear: int) -> bytes:
    out = np.empty(store.chunk(layer, expert, linear).n_bytes, np.uint8)
    store.read_into(layer, expert, linear, out)
    return out.tobytes()


def expected(model: TinyMoE, layer: int, expert: int, linear: int) -> bytes:
    return model.weights[f"blk.{layer}.ffn_{LINEARS[linear]}_exps.weight"][expert].tobytes()


@pytest.mark.parametrize("architecture", ["olmoe", "qwen3moe", "llama"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_gives_the_same_bytes_for_every_matrix(tmp_path, architecture, layout):
    model = tiny_moe(architecture, layout=layout, num_experts=5, expert_width=24)
    store = open_store(model, tmp_path / "m.gguf")
    assert (store.num_layers, store.num_experts, store.moe_layers()) == (2, 5, [0, 1])
    for layer in range(2):
        for expert in range(5):
            for linear in range(3):
                assert read(store, layer, expert, linear) == expected(model, layer, expert, linear)
    one = 3 * 64 * 24 * 4
    assert (store.expert_bytes(0), store.total_bytes) == (one, 10 * one)


def test_chunks_of_a_quantised_stack_are_contiguous_slices(tmp_path):
    rng = np.random.default_rng(0)
    model = tiny_moe("olmoe", expert_width=64)
    sizes = {"gate": QuantType.Q4_0, "up": QuantType.Q8_0, "down": QuantType.Q5_0}
    stacks = {}
    for position, tensor in enumerate(model.tensors):
        noun = tensor.name.split("ffn_")[-1].removesuffix("_exps.weight")
        if tensor.name.startswith("blk.1.") and noun in sizes:
            data = rng.bytes(8 * 64 * row_bytes(sizes[noun], 64))
            model.tensors[position] = replace(tensor, ggml_type=sizes[noun], data=data)
            stacks[noun] = data
    store = open_store(model, tmp_path / "m.gguf")
    for linear, noun in enumerate(LINEARS):
        n_bytes = 64 * row_bytes(sizes[noun], 64)
        first = store.chunk(1, 0, linear)
        assert store.chunk(1, 7, linear) == Chunk(0, first.offset + 7 * n_bytes, n_bytes, sizes[noun])
        assert read(store, 1, 7, linear) == stacks[noun][-n_bytes:]
    assert store.expert_bytes(1) == sum(64 * row_bytes(t, 64) for t in sizes.values()) != store.expert_bytes(0)


def test_types_and_sizes_may_differ_from_expert_to_expert(tmp_path):
    model = tiny_moe("olmoe", layout="per-expert", expert_width=64)
    name = "blk.0.ffn_up.3.weight"
    packed = TinyTensor(name, (64, 64), bytes(64 * row_bytes(QuantType.Q8_0, 64)), QuantType.Q8_0)
    model.tensors = [packed if tensor.name == name else tensor for tensor in model.tensors]
    store = open_store(model, tmp_path / "m.gguf")
    assert store.chunk(0, 3, 1).quant_type is QuantType.Q8_0
    assert store.chunk(0, 2, 1).quant_type is QuantType.F32
    assert store.expert_bytes(0) == 3 * 64 * 64 * 4
    assert store.total_bytes == 16 * 3 * 64 * 64 * 4 - 64 * 64 * 4 + len(packed.data)


def in_pearl_order(model: TinyMoE) -> tuple[list[TinyTensor], list[list[TinyTensor]]]:
    """(non-expert tensors, one list of tensors a layer in the order gate, up, down of expert 0, 1, ..)"""
    by_name = {tensor.name: tensor for tensor in model.tensors}
    layers = [[by_name[f"blk.{layer}.ffn_{noun}.{e}.weight"] for e in range(8) for noun in LINEARS] for layer in (0, 1)]
    return [tensor for tensor in model.tensors if not is_expert_tensor(tensor.name)], layers


def test_a_span_covers_an_expert_whose_matrices_are_adjacent(tmp_path):
    model = tiny_moe("olmoe", layout="per-expert")
    dense, layers = in_pearl_order(model)
    paths = write_split(tmp_path, "m", model.metadata, [dense, *layers])
    with GGUFModel.open(paths[0]) as gguf:
        store = ExpertStore(gguf, ModelConfig.from_gguf(gguf))
        one = 64 * 32 * 4
        for expert in (0, 5, 7):
            gate = store.chunk(1, expert, 0)
            assert gate.file_index == 2
            assert store.span(1, expert) == Span(2, gate.offset, 3 * one)
            assert read(store, 1, expert, 2) == expected(model, 1, expert, 2)


def test_alignment_between_matrices_belongs_to_the_span_but_other_gaps_do_not(tmp_path):
    model = tiny_moe("olmoe", layout="per-expert", num_layers=1, expert_width=24, hidden=32)
    dense, (layer, *_) = in_pearl_order(tiny_moe("olmoe", layout="per-expert", expert_width=24, hidden=32))
    dense = [tensor for tensor in dense if not tensor.name.startswith("blk.1.")]
    metadata = model.metadata | {"general.alignment": 4096}
    path = write_gguf(tmp_path / "m.gguf", metadata, [*dense, *layer], alignment=4096)
    with GGUFModel.open(path) as gguf:
        store = ExpertStore(gguf, ModelConfig.from_gguf(gguf))
        assert store.span(0, 2) == Span(0, store.chunk(0, 2, 0).offset, 2 * 4096 + 24 * 32 * 4)
    order = [*layer[:3], *layer[3:6][::-1], *layer[6:]]
    path = write_gguf(tmp_path / "n.gguf", metadata, [*dense, *order], alignment=4096)
    with GGUFModel.open(path) as gguf:
        store = ExpertStore(gguf, ModelConfig.from_gguf(gguf))
        assert store.span(0, 1) is None
        assert store.span(0, 0) is not None


def test_stacked_experts_have_no_span(tmp_path):
    assert open_store(tiny_moe("olmoe"), tmp_path / "m.gguf").span(0, 0) is None


@pytest.mark.parametrize(
    ("layout", "gone", "message"),
    [
        (
            "per-expert",
            "blk.1.ffn_up.3.weight",
            r"layer 1: expert 3 has no up matrix: tensor 'blk\.1\.ffn_up\.3\.weight'",
        ),
        ("per-expert", "blk.0.ffn_down.0.weight", "layer 0: expert 0 has no down matrix"),
        ("per-expert", "blk.1.ffn_gate.7.weight", "layer 1: expert 7 has no gate matrix"),
        ("stacked", "blk.1.ffn_gate_exps.weight", "layer 1: expert 0 has no gate matrix"),
        ("fused", "blk.0.ffn_gate_up_exps.weight", "layer 0: expert 0 has no gate matrix"),
    ],
)
def test_a_missing_matrix_is_named_by_layer_expert_and_projection(tmp_path, layout, gone, message):
    model = tiny_moe("olmoe", layout=layout)
    model.tensors = [tensor for tensor in model.tensors if tensor.name != gone]
    with pytest.raises(GGUFError, match=message):
        open_store(model, tmp_path / "m.gguf")


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ("blk.0.ffn_gate_up_exps.weight", "the gate matrices are there in two layouts"),
        ("blk.0.ffn_up.0.weight", "the up matrices are there in two layouts"),
        ("blk.2.ffn_up_exps.weight", r"'blk\.2\.ffn_up_exps\.weight' has no place among 2 layers of 8 experts"),
    ],
)
def test_experts_that_are_there_twice_or_too_many_are_refused(tmp_path, extra, message):
    model = tiny_moe("olmoe")
    model.tensors.append(f32(extra, np.zeros((2, 2), np.float32)))
    with pytest.raises(GGUFError, match=message):
        open_store(model, tmp_path / "m.gguf")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_shapes_must_agree_with_the_metadata(tmp_path, layout):
    model = tiny_moe("olmoe", layout=layout)
    model.metadata["olmoe.expert_feed_forward_length"] = 16
    with pytest.raises(GGUFError, match=r"layer 0: tensor 'blk\.0\.ffn_gate.* has shape .*the metadata says \[64, "):
        open_store(model, tmp_path / "m.gguf")


def test_a_ninth_expert_is_refused(tmp_path):
    model = tiny_moe("olmoe", layout="per-expert", num_experts=9)
    model.metadata["olmoe.expert_count"] = 8
    with pytest.raises(GGUFError, match=r"'blk\.0\.ffn_gate\.8\.weight' has no place"):
        open_store(model, tmp_path / "m.gguf")


def test_read_failures_name_the_expert(tmp_path):
    store = open_store(tiny_moe("olmoe"), tmp_path / "m.gguf")
    with open(tmp_path / "m.gguf", "r+b") as file:
        file.truncate(store.chunk(1, 4, 2).offset + 8)
    out = np.empty(store.chunk(1, 4, 2).n_bytes, np.uint8)
    with pytest.raises(ReadFailure, match=r"m\.gguf: down of expert 4 in layer 1 needs bytes up to"):
        store.read_into(1, 4, 2, out)
    with pytest.raises(ValueError, match="out holds 5 bytes"):
        store.read_into(0, 0, 0, np.empty(5, np.uint8))


def test_names_of_expert_tensors():
    yes = ["blk.0.ffn_gate_exps.weight", "blk.12.ffn_down.63.weight", "blk.3.ffn_gate_up_exps.weight"]
    no = ["blk.0.ffn_gate_inp.weight", "blk.0.ffn_gate.weight", "blk.0.ffn_up_shexp.weight", "output.weight"]
    assert [is_expert_tensor(name) for name in yes + no] == [True] * 3 + [False] * 4
