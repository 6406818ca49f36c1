"""`pearl convert` and `pearl synth` through the command line: output, exit codes, nothing half-written."""

from __future__ import annotations

import os
import re
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from convert.recipe import parse_recipe
from models.gguf import GGUFModel
from pearl_cli.commands.convert import command
from pearl_cli.main import run
from tests.convert.checkpoints import sparse_folder, weights, write_folder, write_safetensors
from tests.peak_memory import peak_rss_bytes
from tests.tiny_gguf import Typed, tiny_moe, write_gguf

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "hf", weights())


def test_last_line_is_the_path_to_open(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["convert", str(folder), "-o", str(tmp_path / "out"), "--quant", "q8_0", "--no-vocab"]) == 0
    path = Path(capsys.readouterr().out.splitlines()[-1])
    assert path == tmp_path / "out" / "hf-Q8_0-00001-of-00002.gguf"
    with GGUFModel.open(path) as model:
        assert model.tensors["blk.1.ffn_down.3.weight"].quant_type.name == "Q8_0"


def test_a_gguf_to_q8_0_starts_without_what_it_does_not_need(folder: Path, tmp_path: Path) -> None:
    assert run(["convert", str(folder), "-o", str(tmp_path / "wide"), "--quant", "bf16", "--no-vocab"]) == 0
    args = ["convert", str(next((tmp_path / "wide").iterdir())), "-o", str(tmp_path / "out"), "--quant", "q8_0"]
    code = (
        f"import sys; from pearl_cli.main import run; code = run({args!r}); "
        "slow = {'numba', 'torch', 'tokenizers', 'models.config', 'convert.hf_source'} & set(sys.modules); "
        "sys.exit(f'{code} {slow}' if code or slow else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, timeout=60)


def test_dry_run_writes_nothing(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(tmp_path.rglob("*"))
    args = ["convert", str(folder), "-o", str(tmp_path / "out"), "--quant", "q8_0", "--no-vocab", "--dry-run"]
    assert run(args) == 0
    out = capsys.readouterr().out
    row = next(line for line in out.splitlines() if line.startswith("exps.down"))
    # 2 layers of 4 experts of 32 x 32 weights at 34 bytes for 32; 2 of 4 experts are read a token
    assert row.split() == ["exps.down", "8", "Q8_0", "8.5", "KiB", "8.50", "4.2", "KiB"]
    assert out.splitlines()[-1].endswith("hf-Q8_0-00001-of-00002.gguf")
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["nowhere", "-o", "out"], "nowhere"),
        (["hf"], "-o"),
        (["hf", "-o", "out", "--no-vocab", "--quant", "q9"], "'q9'"),
        (["hf", "-o", "out", "--no-vocab", "--recipe", "all=q8_0"], "role 'all'"),
        (["hf", "-o", "out"], "tokenizer.json"),
        (["hf", "-o", "out.gguf", "--no-vocab"], "--merge"),
        (["hf", "-o", "hf/config.json", "--no-vocab"], "hf/config.json: is a file"),
        (["hf", "-o", "/dev/null", "--no-vocab"], "is a file"),
        (["hf", "-o", "out", "--no-vocab", "--shard-size", "0"], "--shard-size"),
        (["hf", "-o", "out", "--no-vocab", "--shard-size", "1"], "did you mean 1GiB?"),
        (["hf", "-o", "out", "--no-vocab", "--imatrix", "none"], "--imatrix none: cannot be read: No such file"),
        (["hf", "-o", "out", "--no-vocab", "--order", "none"], "--order none: No such file"),
        (["hf", "-o", "out", "--no-vocab", "--recipe", ""], "--recipe: '' names no role"),
        (["hf", "-o", "out", "--no-vocab", "--pre", "qwen2"], "--pre qwen2 is about the tokenizer that --no-vocab"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(
    args: list[str], says: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder.parent)
    assert run(["convert", *args]) == 2
    err = capsys.readouterr().err
    assert says in err
    assert len(err.splitlines()) == 1
    assert not (folder.parent / "out").exists()


def test_the_help_calls_a_type_what_it_is() -> None:
    """q2_k and q6_k are mixes, as they are in llama.cpp."""
    option = next(each for each in command.params if each.name == "quant")
    plain, mixed = (option.help or "").split("llama.cpp's mixes")  # type: ignore[attr-defined]
    types, mixes = (re.findall(r"\b(?:b?f\d+|q\d_\w+)\b", part) for part in (plain, mixed))
    assert len(types) == 6
    assert {parse_recipe(name, None).mix for name in types} == {None}
    assert len(mixes) == 5
    assert all(parse_recipe(name, None).mix is not None for name in mixes)


@pytest.mark.parametrize("flags", [["--no-vocab"], ["--allow-unmapped"], ["--consume"]])
@pytest.mark.parametrize("place", [["-o", "out"], ["--dry-run"]])
def test_what_is_for_folders_is_refused_for_a_gguf(
    flags: list[str], place: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(folder.parent)
    assert run(["convert", "hf", "-o", "wide", "--no-vocab"]) == 0
    path = next(Path("wide").iterdir())
    capsys.readouterr()
    assert run(["convert", str(path), *place, *flags]) == 2
    assert capsys.readouterr().err.startswith(f"pearl: {' '.join(flags)}: {path} is a GGUF, ")
    assert not Path("out").exists()


def test_a_pre_tokenizer_is_named_for_a_gguf(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bpe = tiny_moe().metadata | {"tokenizer.ggml.pre": "default", "tokenizer.ggml.merges": Typed("str", [])}
    kinds = {"bpe": bpe, "spm": bpe | {"tokenizer.ggml.model": "llama"}, "cut": bpe | {"pearl.tokenizer.splits": ["a"]}}
    paths = {kind: write_gguf(tmp_path / f"{kind}.gguf", each, tiny_moe().tensors) for kind, each in kinds.items()}
    out = str(tmp_path / "out")
    for kind in ("bpe", "cut"):
        assert run(["convert", str(paths[kind]), "-o", out, "--pre", "qwen2"]) == 0
        with GGUFModel.open(Path(capsys.readouterr().out.strip())) as model:
            assert model.metadata["tokenizer.ggml.pre"] == "qwen2"
            assert "pearl.tokenizer.splits" not in model.metadata
    for kind, pre, words in (
        ("bpe", "zzz", f"--pre zzz for {paths['bpe']}: tokenizer.ggml.pre = 'zzz' is not supported"),
        ("spm", "qwen2", f"--pre qwen2 is for byte-level BPE, and {paths['spm']} holds no such vocabulary"),
    ):
        assert run(["convert", str(paths[kind]), "-o", str(tmp_path / "not"), "--pre", pre]) == 2
        assert capsys.readouterr().err.startswith(f"pearl: {words}")
    assert not (tmp_path / "not").exists()


def test_full_disk_in_a_real_process(folder: Path, tmp_path: Path) -> None:
    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))

    command = [sys.executable, "-m", "pearl_cli", "convert", str(folder), "-o", str(tmp_path / "out"), "--no-vocab"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, preexec_fn=limit)
    assert done.returncode == 1
    assert "no space" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list((tmp_path / "out").glob("*.gguf"))
    assert subprocess.run(command, cwd=ROOT, capture_output=True).returncode == 0
    assert len(list((tmp_path / "out").glob("*.gguf"))) == 2
    assert not list((tmp_path / "out").glob("*.partial"))


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
def test_memory_is_bounded_by_an_expert_not_by_the_model(tmp_path: Path) -> None:
    expert_bytes = 1024 * 1024 * 4
    small = sparse_folder(tmp_path / "small", 2, 1024, 1024)
    large = sparse_folder(tmp_path / "large", 24, 1024, 1024)
    flags = ["--no-vocab", "--quant", "q8_0", "-t", "2"]
    base = peak_rss_bytes("convert", str(small), "-o", str(tmp_path / "a"), *flags)
    peak = peak_rss_bytes("convert", str(large), "-o", str(tmp_path / "b"), *flags)
    assert peak <= base + 4 * expert_bytes


def test_interrupt_gives_130_and_leaves_nothing_finished(tmp_path: Path) -> None:
    folder = sparse_folder(tmp_path / "hf", 64, 1024, 1024)
    out = tmp_path / "out"
    command = [
        sys.executable,
        "-m",
        "pearl_cli",
        "convert",
        str(folder),
        "-o",
        str(out),
        "--no-vocab",
        "--quant",
        "q6_k",
    ]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not list(out.glob("*.gguf.partial")) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert "goes on from here" in err
    assert not list(out.glob("*.gguf"))


def test_git_lfs_pointer_is_named(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "model.safetensors").write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9")
    assert run(["convert", str(folder), "-o", str(tmp_path / "out"), "--no-vocab"]) == 2
    assert "run git lfs pull" in capsys.readouterr().err


def test_extra_tensors_can_be_left_behind(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_safetensors(
        folder / "model.safetensors", {n: ("F32", a) for n, a in {**weights(), "extra": np.ones(2, np.float32)}.items()}
    )
    args = ["convert", str(folder), "-o", str(tmp_path / "out"), "--no-vocab"]
    assert run(args) == 2
    assert run([*args, "--allow-unmapped"]) == 0
    assert "left behind" in capsys.readouterr().err


def test_synth_names_what_it_does_not_know(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["synth", "no-such-model", "-o", str(tmp_path / "x")]) == 2
    assert "olmoe-1b-7b, qwen3-30b-a3b, mixtral-8x7b" in capsys.readouterr().err
    assert run(["synth", "olmoe-1b-7b", "-o", str(tmp_path / "x"), "--quant", "iq4_nl"]) == 2
    assert "'iq4_nl'" in capsys.readouterr().err


def test_more_threads_than_cores_are_not_made(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["convert", str(folder), "-o", str(tmp_path / "out"), "--no-vocab", "-t", "99999999"]) == 0
    assert "-t 99999999: this process may use" in capsys.readouterr().err


def test_a_stopped_synth_says_how_to_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*args: object, **more: object) -> Path:
        raise KeyboardInterrupt

    monkeypatch.setattr("convert.synth.synthesize", stop)
    assert run(["synth", "olmoe-1b-7b", "-o", str(tmp_path)]) == 130
    assert "stopped; the same command goes on from here\n" in capsys.readouterr().err
