"""`pearl info` through the command line: figures that add up, unsupported and damaged files, checksums."""

import json
import subprocess
import sys
import zlib

import numpy as np
import pytest

from kernels.quant_types import QuantType
from pearl_cli.main import run
from tests.tiny_gguf import TinyMoE, TinyTensor, Typed, tiny_moe, write_gguf, write_split


@pytest.fixture
def info(tmp_path, capsys):
    def call(*args, model=None) -> tuple[int, str, str]:
        """(exit code, stdout, stderr) of `pearl info ARGS` on a file or on a TinyMoE written first."""
        path = model.write(tmp_path / "m.gguf") if isinstance(model, TinyMoE) else model
        code = run(["info", str(path), *args])
        out, err = capsys.readouterr()
        return code, out, err

    return call


def as_json(result: tuple[int, str, str]) -> dict:
    code, out, err = result
    assert (code, err) == (0, "")
    assert out.count("\n") == 1
    return json.loads(out)


@pytest.mark.parametrize(
    ("layout", "name"),
    [("stacked", "stacked"), ("per-expert", "one tensor an expert"), ("fused", "stacked, gate and up fused")],
)
def test_json_figures_follow_from_the_tensors(info, layout, name):
    model = tiny_moe("qwen3moe", layout=layout)
    report = as_json(info("--json", model=model))
    assert (report["architecture"], report["name"], report["supported"]) == ("qwen3moe", "tiny qwen3moe", True)
    one = 3 * 64 * 32 * 4
    assert report["experts"] == {
        "layout": name,
        "num_moe_layers": 2,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "total_bytes": 16 * one,
        "one_bytes": one,
        "token_bytes": 4 * one,
    }
    weights = sum(array.size for array in model.weights.values())
    experts = 16 * one // 4
    assert report["parameters_total"] == weights
    assert report["parameters_active"] == weights - experts + experts // 4
    assert sum(role["n_bytes"] for role in report["roles"]) == 4 * weights
    assert sum(role["n_tensors"] for role in report["roles"]) == len(model.tensors)
    assert report["tokenizer"] == {"model": "gpt2", "pre": "gpt-2", "vocab_size": 259}
    assert report["has_chat_template"] is False
    assert report["floor_bytes"] > 4 * (weights - experts) + 2 * one
    assert "qwen3moe.expert_gating_func = 1 (softmax)" in report["defaults_used"]


def test_bytes_by_role_and_type(info):
    model = tiny_moe("olmoe", expert_width=64)
    for at, tensor in enumerate(model.tensors):
        if "ffn_up_exps" in tensor.name:
            data = bytes(8 * 64 * 2 * 34)
            model.tensors[at] = TinyTensor(tensor.name, tensor.shape, data, QuantType.Q8_0)
    roles = {role["role"]: role for role in as_json(info("--json", model=model))["roles"]}
    assert set(roles) == {"embed", "norm", "attn", "router", "exps.gate_up", "exps.down", "output"}
    gate_up = roles["exps.gate_up"]
    assert gate_up["type_bytes"] == {"F32": 2 * 8 * 64 * 64 * 4, "Q8_0": 2 * 8 * 64 * 2 * 34}
    assert gate_up["bits_per_weight"] == pytest.approx((32 + 8.5) / 2)
    assert gate_up["token_bytes"] == gate_up["n_bytes"] // 4
    assert roles["embed"]["token_bytes"] == 64 * 4
    assert roles["output"]["token_bytes"] == 259 * 64 * 4


def test_a_tied_embedding_is_read_whole(info):
    model = tiny_moe("olmoe")
    model.tensors = [tensor for tensor in model.tensors if tensor.name != "output.weight"]
    roles = {role["role"]: role for role in as_json(info("--json", model=model))["roles"]}
    assert roles["embed"]["token_bytes"] == roles["embed"]["n_bytes"] == 259 * 64 * 4


def test_text_says_the_same(info):
    code, out, err = info(model=tiny_moe("olmoe"))
    assert (code, err) == (0, "")
    assert out.startswith("tiny olmoe (olmoe), 1 file, ")
    for line in ("runs         yes", "8 in each of 2 layers, 2 a token; stacked", "gpt2, pre gpt-2, 259 tokens"):
        assert line in out
    assert "defaults" not in out


def test_windows_are_shown_and_lower_the_least_memory(info):
    model = tiny_moe("llama")
    model.metadata["llama.context_length"] = 4096
    whole = as_json(info("--json", model=model))
    assert "see the last" not in info(model=model)[1]
    model.metadata["llama.attention.sliding_window"] = 64
    assert "2 layers see the last 64 tokens and keep not many more" in info(model=model)[1]
    slots = 64 + 256 + 63  # of 4096, with a copy of a window; a key and a value of 2 heads of 16 halves in 2 layers
    saved = whole["floor_bytes"] - as_json(info("--json", model=model))["floor_bytes"]
    parts = 512 * 64 * 4 * 9 // 8  # attention's rows of a prompt come in parts that are then put together
    assert saved == (4096 - slots) * 2 * 2 * 2 * 16 * 2 - parts


def test_verbose_shows_metadata_and_every_default(info):
    _, out, _ = info("-v", model=tiny_moe("olmoe"))
    assert "olmoe.expert_weights_norm = False (the architecture's rule)" in out
    assert "tokenizer.ggml.token_type = [1, 1, 1, 1, ...] (259 items)" in out
    metadata = as_json(info("--json", "-v", model=tiny_moe("olmoe")))["metadata"]
    assert metadata["olmoe.block_count"] == "2"


@pytest.mark.parametrize("member", [0, 1])
def test_any_member_of_a_set_shows_the_set(info, tmp_path, member):
    model = tiny_moe("olmoe")
    paths = write_split(tmp_path, "s", model.metadata, [model.tensors[:10], model.tensors[10:]])
    report = as_json(info("--json", model=paths[member]))
    assert report["files"] == ["s-00001-of-00002.gguf", "s-00002-of-00002.gguf"]
    assert report["file_bytes"] == sum(path.stat().st_size for path in paths)
    assert report["supported"] is True


def without(name: str) -> TinyMoE:
    model = tiny_moe("olmoe")
    model.tensors = [tensor for tensor in model.tensors if tensor.name != name]
    return model


def with_key(key: str, value) -> TinyMoE:
    model = tiny_moe("olmoe")
    model.metadata[key] = value
    return model


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (with_key("general.architecture", "olmoe9"), "architecture 'olmoe9' is not supported"),
        (with_key("general.architecture", "rnd1"), "nearest relative: qwen3moe"),
        (with_key("general.architecture", "qwen35"), "nearest relative: qwen35moe"),
        (with_key("olmoe.attention.clamp_kqv", 8.0), "clamp_kqv' = '8.0' is not implemented"),
        (with_key("tokenizer.ggml.pre", "zzz-new"), "tokenizer.ggml.pre = 'zzz-new' is not supported"),
        (with_key("tokenizer.ggml.model", "bert"), "tokenizer.ggml.model = 'bert' is not supported"),
        (without("blk.1.ffn_up_exps.weight"), "layer 1: expert 0 has no up matrix"),
        (without("blk.1.attn_norm.weight"), "tensor 'blk.1.attn_norm.weight' is missing"),
    ],
)
def test_a_model_that_does_not_run_is_shown_with_the_reason(info, model, reason):
    report = as_json(info("--json", model=model))
    assert report["supported"] is False
    assert any(reason in line for line in report["reasons"])
    assert len(report["roles"]) == 7
    code, out, _ = info(model=model)
    assert code == 0
    assert "runs         no" in out
    assert reason in out


def test_control_characters_of_a_file_do_not_reach_the_terminal(info):
    _, out, _ = info("-v", model=with_key("general.name", "evil\x1b[2J\nname"))
    assert "\x1b" not in out
    assert "evil\\x1b[2J\\nname" in out


def test_a_damaged_file_is_one_line_and_exit_code_2(info, tmp_path):
    path = tiny_moe("olmoe").write(tmp_path / "cut.gguf")
    path.write_bytes(path.read_bytes()[:-1])
    code, out, err = info(model=path)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert "cut.gguf: the file is cut short" in err


def checked_model(tmp_path):
    model = tiny_moe("olmoe")
    sums = [zlib.crc32(tensor.data) for tensor in model.tensors]
    return write_gguf(
        tmp_path / "c.gguf", model.metadata | {"pearl.tensor_checksums": Typed("u32", sums)}, model.tensors
    )


def test_verify_reads_every_tensor(info, tmp_path):
    path = checked_model(tmp_path)
    assert as_json(info("--json", "--verify", model=path))["tensors_verified"] == 27
    assert "27 tensors agree with their checksums" in info("--verify", model=path)[1]


@pytest.mark.parametrize("tensor", ["token_embd.weight", "blk.1.ffn_down_exps.weight", "output.weight"])
def test_verify_names_a_tensor_with_one_flipped_bit(info, tmp_path, tensor):
    from models.gguf import GGUFModel

    path = checked_model(tmp_path)
    with GGUFModel.open(path) as gguf:
        at = gguf.tensors[tensor].offset + gguf.tensors[tensor].n_bytes - 1
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)
    code, out, err = info("--verify", model=path)
    assert (code, out) == (2, "")
    assert f"1 of 27 tensors differ from their checksums (c.gguf: {tensor})" in err
    assert info(model=path)[0] == 0


@pytest.mark.parametrize(("stored", "message"), [(None, "holds no checksums"), (Typed("u32", [1]), "must hold 27 u32")])
def test_verify_without_usable_checksums_fails(info, stored, message):
    model = tiny_moe("olmoe")
    if stored is not None:
        model.metadata["pearl.tensor_checksums"] = stored
    code, _, err = info("--verify", model=model)
    assert code == 2
    assert message in err


def test_verify_a_tensor_larger_than_the_reading_piece(info, tmp_path, monkeypatch):
    monkeypatch.setattr("pearl_cli.verify_checksums._PIECE_BYTES", 1000)
    assert as_json(info("--json", "--verify", model=checked_model(tmp_path)))["tensors_verified"] == 27


def test_info_imports_neither_numba_nor_torch(tmp_path):
    path = tiny_moe("olmoe").write(tmp_path / "m.gguf")
    code = (
        "import sys; from pearl_cli.main import run; code = run(['info', sys.argv[1]]); "
        "print(code, [name for name in ('numba', 'torch', 'tokenizers') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "0 []"


def test_numbers_of_a_model_are_not_floats_of_numpy(info):
    report = as_json(info("--json", model=tiny_moe("llama")))
    assert isinstance(report["experts"]["total_bytes"], int)
    assert not isinstance(report["parameters_active"], np.generic)
