"""Files that are damaged, cut short, hostile or no GGUF at all: one line that says what to do, and no memory spent."""

import struct
import tracemalloc
from dataclasses import replace

import pytest

from kernels.quant_types import QuantType
from models.errors import FileError, GGUFError, PearlError, UnsupportedQuantType
from models.gguf import GGUFModel
from tests.tiny_gguf import TinyTensor, Typed, gguf_bytes, pack_str, pack_value, write_gguf

ONE = TinyTensor("one", (8,), bytes(32))
TWO = TinyTensor("two", (8,), bytes(32))
MEMORY_BYTES = 8 << 20


def head(n_tensors: int, n_kv: int, rest: bytes = b"") -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, n_tensors, n_kv) + rest


def key(name: str | bytes, kind: int, rest: bytes = b"") -> bytes:
    return pack_str(name) + struct.pack("<I", kind) + rest


def tensor_entry(n_dims: int, dims: tuple[int, ...]) -> bytes:
    return pack_str("t") + struct.pack(f"<I{len(dims)}Q", n_dims, *dims) + struct.pack("<IQ", 0, 0)


def nested_arrays(depth: int) -> bytes:
    return key("k", 9, struct.pack("<IQ", 9, 1) * depth)


LIES = {
    "2^63 metadata entries": (head(0, 2**63), "9223372036854775808 metadata entries"),
    "2^63 tensors": (head(2**63, 0), "9223372036854775808 tensors"),
    "key of 2^63 bytes": (head(0, 1, struct.pack("<Q", 2**63) + bytes(16)), "key of metadata entry 0: that needs byte"),
    "u8 array of 2^62": (
        head(0, 1, key("k", 9, struct.pack("<IQ", 0, 2**62))),
        "'k' declares 4611686018427387904 numbers",
    ),
    "u64 array of 2^61": (head(0, 1, key("k", 9, struct.pack("<IQ", 10, 2**61))), "'k' declares"),
    "string array of 2^30": (head(0, 1, key("k", 9, struct.pack("<IQ", 8, 2**30))), "'k' declares 1073741824 strings"),
    "string of 2^40": (head(0, 1, key("k", 8, struct.pack("<Q", 2**40))), "metadata 'k': that needs byte"),
    "long string in an array": (
        head(0, 1, key("k", 9, struct.pack("<IQQ", 8, 2, 2**50) + bytes(16))),
        "metadata 'k': that needs byte",
    ),
    "nested arrays": (head(0, 1, nested_arrays(10_000)), "'k' is an array of arrays"),
    "array of unknown type": (head(0, 1, key("k", 9, struct.pack("<IQ", 77, 1))), "unknown value type 77"),
    "unknown value type": (head(0, 1, key("k", 99, bytes(8))), "metadata 'k' has the unknown value type 99"),
    "bool 7": (head(0, 1, key("k", 7, b"\7")), "'k' is a bool stored as 7"),
    "bool array with 7": (head(0, 1, key("k", 9, struct.pack("<IQ", 7, 3) + b"\1\7\0")), "bools with a 7"),
    "key not UTF-8": (head(0, 1, key(b"\xff\xfe", 0, b"\1")), "key of metadata entry 0 is not valid UTF-8"),
    "template not UTF-8": (
        head(0, 1, key("tokenizer.chat_template", 8, pack_str(b"{{ \xff }}"))),
        "'tokenizer.chat_template' is not valid UTF-8 at its byte 3",
    ),
    "tensor name not UTF-8": (head(1, 0, key(b"\xff", 1) + bytes(24)), "tensor 0 is not valid UTF-8"),
    "no dimensions": (head(1, 0, tensor_entry(0, ()) + bytes(64)), "0 dimensions; GGUF allows 1 to 4"),
    "5 dimensions": (head(1, 0, tensor_entry(5, (1,) * 5)), "5 dimensions"),
    "2^32-1 dimensions": (head(1, 0, tensor_entry(2**32 - 1, (1,)) + bytes(64)), "4294967295 dimensions"),
    "dimension 0": (head(1, 0, tensor_entry(2, (4, 0)) + bytes(64)), r"empty dimension \[4, 0\]"),
    "size over 2^64": (
        head(1, 0, tensor_entry(2, (2**32, 2**32)) + bytes(64)),
        "cut short: tensor 't' needs bytes up to 7378",
    ),
    "duplicate key": (head(0, 2, 2 * key("k", 0, b"\1")), "'k' appears twice"),
    "alignment 0": (gguf_bytes({"general.alignment": 0}, [ONE]), "alignment is '0'; it must be a power of two"),
    "alignment 3": (gguf_bytes({"general.alignment": 3}, [ONE]), "alignment is '3'"),
    "alignment 2^30": (gguf_bytes({"general.alignment": 2**30}, [ONE]), "alignment is '1073741824'"),
    "alignment as text": (gguf_bytes({"general.alignment": "32"}, [ONE]), "power of two"),
    "offset 1": (gguf_bytes({}, [replace(ONE, offset=1)]), "'one' starts at offset 1, which is no multiple"),
    "offset 2^63": (gguf_bytes({}, [replace(ONE, offset=2**63)]), "cut short: tensor 'one' needs bytes up to 922"),
    "overlap": (gguf_bytes({}, [ONE, replace(TWO, offset=0)]), "'one' and 'two' overlap"),
    "partial overlap": (gguf_bytes({}, [replace(ONE, shape=(16,)), replace(TWO, offset=32)]), "overlap"),
    "duplicate tensor": (gguf_bytes({}, [ONE, ONE]), "tensor 'one' appears twice"),
    "row of half a block": (
        gguf_bytes({}, [TinyTensor("q", (48,), bytes(64), 8)]),
        "rows of 48 .* Q8_0 stores blocks of 32",
    ),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_in_the_header_is_named_and_costs_no_memory(tmp_path, lie):
    content, message = LIES[lie]
    path = tmp_path / "hostile.gguf"
    path.write_bytes(content)
    tracemalloc.start()
    try:
        with pytest.raises(GGUFError, match=message) as caught:
            GGUFModel.open(path)
        assert tracemalloc.get_traced_memory()[1] < MEMORY_BYTES
    finally:
        tracemalloc.stop()
    assert_one_line(caught.value, path)


def test_a_false_count_in_a_huge_sparse_file_costs_no_memory_either(tmp_path):
    path = tmp_path / "sparse.gguf"
    path.write_bytes(head(0, 1, key("k", 9, struct.pack("<IQ", 0, 2**38))))
    with open(path, "ab") as file:
        file.truncate(1 << 39)
    tracemalloc.start()
    try:
        with pytest.raises(GGUFError, match="'k' declares"):
            GGUFModel.open(path)
        assert tracemalloc.get_traced_memory()[1] < MEMORY_BYTES
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("type_id", [4, 31, 255, 2**32 - 1])
def test_unknown_tensor_type_names_the_tensor_and_the_known_types(tmp_path, type_id):
    path = write_gguf(tmp_path / "m.gguf", {}, [TinyTensor("blk.0.odd", (32,), bytes(256), type_id)])
    with pytest.raises(UnsupportedQuantType, match=rf"tensor 'blk\.0\.odd': .*'id {type_id}'.*Q4_K \(12\)") as caught:
        GGUFModel.open(path)
    assert_one_line(caught.value, path)


def test_hostile_names_cannot_break_the_line_or_the_terminal(tmp_path):
    path = write_gguf(tmp_path / "m.gguf", {"a\nb\x1b[31m" + "x" * 5000: Typed("bool", 7)})
    with pytest.raises(GGUFError, match=r"a\\nb\\x1b") as caught:
        GGUFModel.open(path)
    assert_one_line(caught.value, path)
    assert len(str(caught.value)) < 400 + len(str(path))


def whole_file() -> bytes:
    metadata = {
        "general.architecture": "x",
        "names": ["a", "bc", "def"],
        "numbers": Typed("i64", [1, 2, 3]),
        "yes": True,
    }
    tensors = [ONE, TinyTensor("q", (64, 2), bytes(136), QuantType.Q8_0), TinyTensor("last", (700,), bytes(2800))]
    return gguf_bytes(metadata, tensors)


def test_a_file_cut_anywhere_is_refused(tmp_path):
    content = whole_file()
    path = tmp_path / "cut.gguf"
    path.write_bytes(content)
    GGUFModel.open(path).close()
    assert len(content) < 4096
    for size in [*range(0, len(content), 4), len(content) - 1]:
        path.write_bytes(content[:size])
        with pytest.raises(GGUFError, match="download it again") as caught:
            GGUFModel.open(path)
        assert_one_line(caught.value, path)


def test_a_cut_in_the_weights_names_tensor_end_and_size(tmp_path):
    content = whole_file()
    path = tmp_path / "cut.gguf"
    path.write_bytes(content[:-1])
    message = f"tensor 'last' needs bytes up to {len(content)}, the file has {len(content) - 1}; download it again"
    with pytest.raises(GGUFError, match=message):
        GGUFModel.open(path)


OTHERS = {
    "git-lfs pointer": (
        b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 4000000000\n",
        "a git-lfs pointer, 135 bytes.*git lfs pull",
    ),
    "HTML page": (b"<!DOCTYPE html><html><body>Not found</body></html>", "an HTML page"),
    "HTML after blanks": (b"\n\n  <html>" + bytes(64), "an HTML page"),
    "empty": (b"", r"empty \(0 bytes\); download it again"),
    "GGML": (b"lmgg" + bytes(64), "a GGML file, the format before GGUF"),
    "GGMF": (b"fmgg" + bytes(64), "a GGMF file"),
    "GGJT": (b"tjgg" + bytes(64), "a GGJT file"),
    "zipped pickle": (b"PK\x03\x04" + bytes(64), "a pickle .*safetensors"),
    "pickle": (b"\x80\x02}q\x00" + bytes(64), "a pickle"),
    "safetensors": (struct.pack("<Q", 40) + b'{"weight":{"dtype":"F32"}}' + bytes(64), "a safetensors file; convert"),
    "big endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
    "version 1": (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "GGUF version 1; pearl reads versions 2 and 3"),
    "version 9": (b"GGUF" + struct.pack("<IQQ", 9, 0, 0), "GGUF version 9"),
    "noise": (b"abcd" + bytes(64), "not a GGUF file: it starts with 'abcd'"),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_what_is_no_gguf_is_named_with_what_to_do(tmp_path, kind):
    content, message = OTHERS[kind]
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    with pytest.raises(GGUFError, match=message) as caught:
        GGUFModel.open(path)
    assert_one_line(caught.value, path)


def test_missing_files_and_folders(tmp_path):
    write_gguf(tmp_path / "mixtral-q4.gguf", {})
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "model.safetensors").write_bytes(b"")
    (tmp_path / "hf" / "config.json").write_text("{}")
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "model.safetensors").write_bytes(b"")
    (tmp_path / "bins").mkdir()
    (tmp_path / "bins" / "pytorch_model.bin").write_bytes(b"")
    (tmp_path / "none").mkdir()
    (tmp_path / "mixtral-q6.gguf").symlink_to("blobs/0123")
    cases = {
        "mixtral-q5.gguf": "no such file; did you mean .*mixtral-q4.gguf",
        "mixtral-q6.gguf": "a link to blobs/0123, which is not there; download that file again",
        "nowhere/x.gguf": "no such file .*no folder",
        ".": "is a folder; open a file in it, such as .*mixtral-q4.gguf",
        "hf": "a folder of safetensors; convert it first: pearl convert",
        "half": "no config.json; download the whole folder",
        "bins": "pickled weights",
        "none": "without .gguf or .safetensors",
    }
    for name, message in cases.items():
        with pytest.raises(FileError, match=message) as caught:
            GGUFModel.open(tmp_path / name)
        assert_one_line(caught.value, tmp_path / name)
    with pytest.raises(FileError, match="not a regular file"):
        GGUFModel.open("/dev/null")


def assert_one_line(error: PearlError, path) -> None:
    text = str(error)
    assert text.startswith(f"{path}: ")
    assert "\n" not in text
    assert text.isprintable()
    assert error.exit_code == 2


def test_test_bricks_pack_what_they_say():
    assert pack_value(Typed("u16", 3)) == bytes([2, 0, 0, 0, 3, 0])
    assert pack_value(True) == bytes([7, 0, 0, 0, 1])
    assert pack_value("ab") == bytes([8, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0]) + b"ab"
    assert pack_value([1.0]) == bytes([9, 0, 0, 0, 6, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]) + struct.pack("<f", 1.0)
