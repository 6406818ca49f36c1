"""Shards made in host memory are those that a conversion writes, byte for byte, made once and only where wanted."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import convert.host_shards as host_shards
from convert.host_shards import HostShards
from convert.open_in_ram import open_in_ram
from convert.pipeline import ConvertOptions, convert
from convert.rows import FileRows
from kernels.cpu.memory import allocate
from models.config import ModelConfig
from models.errors import ConversionError, FileError, ReadFailure
from models.expert_store import ExpertStore
from models.gguf import GGUFModel
from pearl_cli.verify_checksums import verify_checksums
from tests.convert.checkpoints import weights, write_folder
from tests.convert.test_hf_architectures import deepseek_config, deepseek_weights


def options(**changes: Any) -> ConvertOptions:
    return ConvertOptions(**{"with_vocab": False, **changes})


def everything(name: str) -> bool:
    return True


def store_of(model: GGUFModel) -> HostShards:
    assert isinstance(model.memory, HostShards)
    return model.memory


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "hf", weights(), shards=3)


@pytest.mark.parametrize("quant", [None, "q8_0", "q4_0", "f16"])
@pytest.mark.parametrize("threads", [1, 3])
def test_files_in_memory_are_those_on_the_disk(quant: str | None, threads: int, folder: Path, tmp_path: Path) -> None:
    chosen = options(quant=quant, shard_bytes=3 << 14)
    disk = GGUFModel.open(convert(folder, tmp_path / "out", chosen))
    ram = open_in_ram(folder, chosen, allocate)
    store_of(ram).fill(everything, threads)
    assert [path.name for path in ram.paths] == [path.name for path in disk.paths]
    assert len(ram.paths) > 2
    assert ram.tensors == disk.tensors
    checksums = "pearl.tensor_checksums"
    assert ram.metadata == {k: v for k, v in disk.metadata.items() if k != checksums}
    assert all(checksums not in header.metadata for header in ram.headers)
    with pytest.raises(FileError, match="holds no checksums"):
        verify_checksums(ram, lambda done, total: None)
    for index, path in enumerate(disk.paths):
        whole = np.empty(path.stat().st_size, np.uint8)
        ram.read_bytes(index, 0, whole, "all of it")
        first = disk.headers[index].tensors[0].offset
        assert whole[first:].tobytes() == path.read_bytes()[first:]
    assert not list(folder.glob("*.gguf*"))


def test_an_expert_is_found_by_the_chunk_table(folder: Path, tmp_path: Path) -> None:
    chosen = options(quant="q8_0")
    disk = GGUFModel.open(convert(folder, tmp_path / "out", chosen))
    ram = open_in_ram(folder, chosen, allocate)
    stores = [ExpertStore(model, ModelConfig.from_gguf(model)) for model in (disk, ram)]
    import ctypes

    for linear in range(3):
        on_disk, in_ram = (store.chunk(1, 2, linear) for store in stores)
        assert on_disk == in_ram
        expected = np.empty(on_disk.n_bytes, np.uint8)
        stores[0].read_into(1, 2, linear, expected)
        got = np.empty(on_disk.n_bytes, np.uint8)
        stores[1].read_into(1, 2, linear, got)
        at = store_of(ram).address(in_ram.file_index, in_ram.offset)
        assert at % 4096 == 0
        assert ctypes.string_at(at, in_ram.n_bytes) == expected.tobytes() == got.tobytes()


def test_a_tensor_is_made_when_it_is_asked_for(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ram = open_in_ram(folder, options(quant="q8_0"), allocate)
    store = store_of(ram)
    before = store.missing_bytes(everything)
    assert before == sum(-(-t.n_bytes // 4096) * 4096 for t in ram.tensors.values())
    read: list[int] = []
    real = FileRows.floats
    monkeypatch.setattr(FileRows, "floats", lambda rows, first, n: read.append(rows.offset) or real(rows, first, n))
    router = ram.tensors["blk.1.ffn_gate_inp.weight"]
    first = ram.resident(router)
    assert first is not None
    expected = weights()["model.layers.1.mlp.gate.weight"]
    np.testing.assert_array_equal(first.view(np.float32).reshape(expected.shape), expected)
    assert before - store.missing_bytes(everything) == -(-router.n_bytes // 4096) * 4096
    n_reads = len(read)
    np.testing.assert_array_equal(ram.read(router), first)
    assert len(read) == n_reads


def test_layers_that_are_not_computed_are_left_out(tmp_path: Path) -> None:
    """A stock file with a prediction layer behind the last: its tensors are in the header, their pages untouched."""
    source = convert(write_folder(tmp_path / "hf", deepseek_weights(), deepseek_config()), tmp_path / "p", options())
    ram = open_in_ram(source, options(), allocate)
    store = store_of(ram)
    store.fill(lambda name: not name.startswith("blk.1."), 2)
    left = [name for name in ram.tensors if name.startswith("blk.1.")]
    assert store.missing_bytes(everything) == sum(-(-ram.tensors[n].n_bytes // 4096) * 4096 for n in left) > 0


def test_pieces_held_at_a_time_do_not_grow_with_the_model(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With pieces of one row, no thread ever holds more than one piece."""
    monkeypatch.setattr("convert.pipeline._PIECE_WEIGHTS", 1)
    ram = open_in_ram(folder, options(quant="q8_0"), allocate)
    lock, running, most = threading.Lock(), 0, 0
    real = FileRows.floats

    def counted(rows: FileRows, first: int, n: int) -> np.ndarray:
        nonlocal running, most
        assert n == 1
        with lock:
            running += 1
            most = max(most, running)
        try:
            return real(rows, first, n)
        finally:
            with lock:
                running -= 1

    monkeypatch.setattr(FileRows, "floats", counted)
    store_of(ram).fill(everything, 3)
    assert 1 <= most <= 3


def test_an_error_of_a_tensor_ends_the_filling(tmp_path: Path) -> None:
    tensors = weights()
    tensors["model.layers.1.mlp.experts.2.up_proj.weight"][3, 5] = np.nan
    ram = open_in_ram(write_folder(tmp_path / "hf", tensors), options(quant="q8_0"), allocate)
    with pytest.raises(ConversionError, match=r"blk\.1\.ffn_up\.2\.weight holds NaN"):
        store_of(ram).fill(everything, 2)


def test_a_source_that_was_cut_meanwhile_is_named(folder: Path) -> None:
    ram = open_in_ram(folder, options(quant="q8_0"), allocate)
    victim = folder / "model-00002-of-00003.safetensors"
    with victim.open("r+b") as file:
        file.truncate(victim.stat().st_size // 2)
    with pytest.raises(ReadFailure, match=r"model-00002-of-00003\.safetensors"):
        store_of(ram).fill(everything, 2)


def test_jobs_of_another_size_are_our_own_fault(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_shards, "jobs_of", lambda plan: lambda tensor: [lambda: np.zeros(7, np.uint8)])
    ram = open_in_ram(folder, options(quant="q8_0"), allocate)
    with pytest.raises(ValueError, match="its type and shape need"):
        store_of(ram).fill(everything, 1)


def test_progress_ends_at_the_whole(folder: Path) -> None:
    ram = open_in_ram(folder, options(quant="q8_0"), allocate)
    told: list[tuple[int, int]] = []
    store_of(ram).fill(everything, 2, lambda done, total: told.append((done, total)))
    total = sum(info.n_bytes for info in ram.tensors.values())
    assert told[-1] == (total, total)
    assert store_of(ram).missing_bytes(everything) == 0


def test_a_closed_store_is_not_read(folder: Path) -> None:
    ram = open_in_ram(folder, options(quant="q8_0"), allocate)
    ram.close()
    ram.close()
    with pytest.raises(ValueError, match="closed"):
        ram.read("output_norm.weight")
