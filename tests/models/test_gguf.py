"""The GGUF reader on sound files: every value type, every tensor byte, few reads, errors while reading."""

import os

import gguf
import numpy as np
import pytest
from gguf import GGUFReader

from kernels.quant_types import QuantType, block_bytes, block_size
from models.errors import FileError, ReadFailure, UnsupportedQuantType
from models.gguf import GGUFModel, StringArray
from models.gguf_cursor import FIRST_READ_BYTES
from models.gguf_values import Kind, ValueType
from tests.tiny_gguf import TinyTensor, Typed, f32, tiny_moe, write_gguf

NUMBERS = {
    "u8": 200,
    "i8": -3,
    "u16": 60000,
    "i16": -300,
    "u32": 2**32 - 1,
    "i32": -(2**31),
    "u64": 2**64 - 1,
    "i64": -(2**63),
}


def test_every_value_type_comes_back_with_its_type(tmp_path):
    metadata = {f"number.{kind}": Typed(kind, value) for kind, value in NUMBERS.items()}
    metadata |= {"f": 0.5, "d": Typed("f64", 0.1), "yes": True, "no": False, "text": "né", "empty": ""}
    metadata |= {f"list.{kind}": Typed(kind, [value, 0]) for kind, value in NUMBERS.items()}
    metadata |= {"strings": ["a", "", "日本"], "bools": [True, False], "floats": [1.5, 2.0], "none": Typed("f32", [])}
    with GGUFModel.open(write_gguf(tmp_path / "m.gguf", metadata)) as model:
        for kind, value in NUMBERS.items():
            assert model.metadata[f"number.{kind}"] == value
            assert type(model.metadata[f"number.{kind}"]) is int
            stored = model.metadata[f"list.{kind}"]
            assert stored.tolist() == [value, 0]
            assert stored.dtype.str.lstrip("<|") == kind[0] + str(int(kind[1:]) // 8)
        assert (model.metadata["f"], model.metadata["d"]) == (0.5, 0.1)
        assert (model.metadata["yes"], model.metadata["no"]) == (True, False)
        assert (model.metadata["text"], model.metadata["empty"]) == ("né", "")
        assert list(model.metadata["strings"]) == ["a", "", "日本"]
        assert model.metadata["bools"].dtype == np.bool_
        assert model.metadata["bools"].tolist() == [True, False]
        assert model.metadata["floats"].dtype == np.float32
        assert model.metadata["none"].size == 0
        assert model.kinds["number.u16"] == Kind(ValueType.UINT16)
        assert model.kinds["list.i64"] == Kind(ValueType.ARRAY, ValueType.INT64)
        assert model.kinds["strings"] == Kind(ValueType.ARRAY, ValueType.STRING)


def test_string_array_behaves_as_a_list_and_keeps_bytes_that_are_not_utf8(tmp_path):
    path = write_gguf(tmp_path / "m.gguf", {"t": Typed("str", ["zero", b"\xff\xfe", "two", "three"])})
    with GGUFModel.open(path) as model:
        strings = model.metadata["t"]
    assert isinstance(strings, StringArray)
    assert (len(strings), strings[0], strings[-1], strings[1:3]) == (4, "zero", "three", ["\udcff\udcfe", "two"])
    assert strings[1].encode("utf-8", "surrogateescape") == strings.raw(1) == b"\xff\xfe"
    assert strings == ["zero", "\udcff\udcfe", "two", "three"]
    assert strings != ["zero"]
    assert strings.index("two") == 2
    for index in (4, -5):
        with pytest.raises(IndexError):
            strings[index]


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("alignment", [32, 64, 4096])
def test_tensor_bytes_and_positions(tmp_path, version, alignment):
    rng = np.random.default_rng(0)
    tensors = [
        f32("a", rng.standard_normal((3, 5)).astype(np.float32)),
        TinyTensor("q8", (64, 3), rng.bytes(34 * 6), QuantType.Q8_0),
        TinyTensor("four.dims", (2, 3, 4, 5), rng.bytes(4 * 120)),
    ]
    metadata = {"general.alignment": alignment}
    path = write_gguf(tmp_path / "m.gguf", metadata, tensors, version=version, alignment=alignment)
    with GGUFModel.open(str(path)) as model:
        assert (model.version, model.alignment, list(model.tensors)) == (version, alignment, ["a", "q8", "four.dims"])
        for tensor in tensors:
            info = model.tensors[tensor.name]
            assert info.offset % alignment == 0
            assert (info.shape, info.n_bytes) == (tensor.shape, len(tensor.data))
            assert model.read(tensor.name).tobytes() == model.read(info).tobytes() == tensor.data
        assert (model.tensors["four.dims"].n_cols, model.tensors["four.dims"].n_rows) == (2, 60)


@pytest.mark.parametrize("quant_type", list(QuantType), ids=lambda t: t.name)
def test_every_quant_type_has_its_size(tmp_path, quant_type):
    n_bytes = 3 * 2 * block_bytes(quant_type)
    tensor = TinyTensor("t", (2 * block_size(quant_type), 3), bytes(n_bytes), quant_type)
    with GGUFModel.open(write_gguf(tmp_path / "m.gguf", {}, [tensor])) as model:
        assert (model.tensors["t"].quant_type, model.tensors["t"].n_bytes) == (quant_type, n_bytes)


def test_reads_what_the_formats_own_writer_writes(tmp_path):
    path = tmp_path / "w.gguf"
    writer = gguf.GGUFWriter(path, "olmoe")
    writer.add_uint32("olmoe.block_count", 3)
    writer.add_array("tokens", ["a", "b"])
    values = np.arange(96, dtype=np.float32).reshape(3, 32)
    writer.add_tensor("plain", values)
    writer.add_tensor("half", values.astype(np.float16))
    writer.add_tensor("packed", gguf.quantize(values, QuantType.Q8_0), raw_dtype=QuantType.Q8_0)
    for step in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file, writer.close):
        step()
    reader = GGUFReader(path)
    with GGUFModel.open(path) as model:
        assert model.metadata == {"general.architecture": "olmoe", "olmoe.block_count": 3, "tokens": ["a", "b"]}
        for tensor in reader.tensors:
            assert model.tensors[tensor.name].offset == tensor.data_offset
            assert model.read(tensor.name).tobytes() == np.asarray(tensor.data).tobytes()
        np.testing.assert_array_equal(model.array("plain"), values)
        np.testing.assert_array_equal(model.array("half"), values)
        with pytest.raises(UnsupportedQuantType, match=r"packed.*Q8_0.*F32, F16, BF16"):
            model.array("packed")


def test_bf16_array_is_exact(tmp_path):
    raw = np.array([0x3F80, 0xC000, 0x4789, 0x0001], dtype="<u2")
    with GGUFModel.open(
        write_gguf(tmp_path / "m.gguf", {}, [TinyTensor("t", (4,), raw.tobytes(), QuantType.BF16)])
    ) as model:
        assert model.array("t").tolist() == [1.0, -2.0, 70144.0, 2.0**-133]


def test_a_large_header_is_fetched_in_few_reads_and_not_much_beyond_its_end(tmp_path):
    words = [f"token number {i}" for i in range(152_000)]
    tensors = [TinyTensor(f"blk.{i // 400}.ffn_gate.{i % 400}.weight", (1,), b"1234") for i in range(20_000)]
    path = write_gguf(tmp_path / "m.gguf", {"tokens": words, "merges": words[:150_000]}, tensors)
    with open(path, "ab") as file:
        file.truncate(path.stat().st_size + (1 << 30))  # weights: a hole, but reading it would count
    with GGUFModel.open(path) as model:
        header = model.headers[0]
        assert len(model.tensors) == 20_000
        assert (model.metadata["tokens"][151_999], model.metadata["merges"][149_999]) == (words[-1], words[149_999])
        assert header.n_reads <= 8
        assert header.n_fetched <= 2 * model.tensors["blk.0.ffn_gate.0.weight"].offset + FIRST_READ_BYTES


@pytest.mark.parametrize("first_read_bytes", range(64, 128, 3))
def test_items_on_the_border_of_two_reads(tmp_path, monkeypatch, first_read_bytes):
    monkeypatch.setattr("models.gguf_cursor.FIRST_READ_BYTES", first_read_bytes)
    model_file = tiny_moe("qwen3moe", layout="per-expert")
    with GGUFModel.open(model_file.write(tmp_path / "m.gguf")) as model:
        assert model.headers[0].n_reads > 5
        assert model.metadata["tokenizer.ggml.tokens"] == model_file.metadata["tokenizer.ggml.tokens"]
        for tensor in model_file.tensors:
            assert model.read(tensor.name).tobytes() == tensor.data


def test_opening_reads_no_weights(tmp_path):
    path = write_gguf(tmp_path / "m.gguf", {}, [TinyTensor("t", (1 << 20,), bytes(4 << 20))])
    with GGUFModel.open(path) as model:
        assert model.headers[0].n_fetched <= FIRST_READ_BYTES


def test_file_cut_while_open_is_an_error_with_the_tensor_and_the_sizes(tmp_path):
    path = write_gguf(tmp_path / "m.gguf", {}, [TinyTensor("w", (4096,), bytes(16384))])
    with GGUFModel.open(path) as model:
        end = model.tensors["w"].offset + 16384
        os.truncate(path, end - 4)
        with pytest.raises(
            ReadFailure, match=rf"m\.gguf: tensor 'w' needs bytes up to {end}, the file now ends at {end - 4}"
        ):
            model.read("w")


def test_wrong_buffers_and_a_closed_model_are_the_callers_fault(tmp_path):
    path = write_gguf(tmp_path / "m.gguf", {}, [TinyTensor("w", (4,), bytes(16))])
    model = GGUFModel.open(path)
    info = model.tensors["w"]
    wrong = [
        np.zeros(15, np.uint8),
        np.zeros(16, np.int8),
        np.zeros(32, np.uint8)[::2],
        np.frombuffer(bytes(16), np.uint8),
    ]
    for out in wrong:
        with pytest.raises(ValueError):
            model.read_into(info, out)
    model.close()
    model.close()
    with pytest.raises(ValueError, match="closed"):
        model.read("w")


def test_no_file_stays_open_after_close_or_a_failed_open(tmp_path):
    good = tiny_moe().write(tmp_path / "good.gguf")
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(good.read_bytes()[:-1])
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else pytest.skip("needs /proc")
    GGUFModel.open(good).close()
    with pytest.raises(FileError):
        GGUFModel.open(bad)
    assert len(os.listdir("/proc/self/fd")) == before
