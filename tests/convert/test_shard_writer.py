"""The writer: files as DESIGN lays them out, and nothing unfinished that looks finished, wherever it is stopped."""

from __future__ import annotations

import errno
import os
import shutil
import zlib
from pathlib import Path

import gguf
import numpy as np
import pytest

from convert.gguf_layout import FileLayout, OutputTensor
from convert.gguf_metadata import Metadata
from convert.shard_plan import plan_pearl_set, plan_stock_file
from convert.shard_writer import partial_path, write_files
from convert.stream import Job
from kernels.quant_types import QuantType
from models.errors import ConversionError, DiskFullError, FileError
from models.gguf import GGUFModel
from tests.convert.checkpoints import Stopped, contents, stopping_at


def metadata() -> Metadata:
    keys = Metadata()
    keys.string("general.architecture", "olmoe")
    keys.u32("olmoe.expert_count", 3)
    return keys


def tensors() -> list[OutputTensor]:
    out = [
        OutputTensor("token_embd.weight", (40, 7), QuantType.F32),
        OutputTensor("output_norm.weight", (40,), QuantType.F32),
    ]
    for layer in range(2):
        for linear in ("gate", "up", "down"):  # not the order of the file
            out += [OutputTensor(f"blk.{layer}.ffn_{linear}.{e}.weight", (32, 9), QuantType.Q8_0) for e in range(3)]
    return out


def content(tensor: OutputTensor) -> np.ndarray:
    return np.random.default_rng(zlib.crc32(tensor.name.encode())).integers(0, 256, tensor.n_bytes, dtype=np.uint8)


def jobs(tensor: OutputTensor) -> list[Job]:
    return [lambda part=part: part for part in np.array_split(content(tensor), 3)]  # type: ignore[misc]


def layouts(directory: Path, shard_bytes: int = 3 * 4096 * 2) -> list[FileLayout]:
    return plan_pearl_set(directory, "m", metadata(), tensors(), shard_bytes)


def write(directory: Path, **options: object) -> Path:
    return write_files(layouts(directory), jobs, "job", threads=2, **options)  # type: ignore[arg-type]


def test_layout_of_the_set(tmp_path: Path) -> None:
    path = write(tmp_path / "out")
    assert path.name == "m-00001-of-00004.gguf"
    assert not list(path.parent.glob("*.partial"))
    with GGUFModel.open(path) as model:
        assert model.metadata["pearl.format_version"] == 1
        assert model.metadata["pearl.expert_layout"] == "per_expert"
        assert model.metadata["split.tensors.count"] == 20
        for tensor in tensors():
            info = model.tensors[tensor.name]
            assert (info.shape, info.quant_type) == (tensor.shape, tensor.quant_type)
            assert info.offset % 4096 == 0
            assert model.read(info).tobytes() == content(tensor).tobytes()
        assert all((info.file_index == 0) == (".ffn_" not in name) for name, info in model.tensors.items())
        for layer in range(2):
            for expert in range(3):
                spans = [
                    model.tensors[f"blk.{layer}.ffn_{linear}.{expert}.weight"] for linear in ("gate", "up", "down")
                ]
                assert len({span.file_index for span in spans}) == 1
                assert spans[1].offset == spans[0].offset + 4096
                assert spans[2].offset == spans[1].offset + 4096


def test_gguf_py_reads_every_shard_and_the_checksums(tmp_path: Path) -> None:
    write(tmp_path)
    for shard in sorted(tmp_path.glob("*.gguf")):
        reader = gguf.GGUFReader(shard)
        checksums = reader.fields["pearl.tensor_checksums"].contents()
        assert len(checksums) == len(reader.tensors)
        for tensor, checksum in zip(reader.tensors, checksums, strict=True):
            expected = content(
                OutputTensor(tensor.name, tuple(int(n) for n in tensor.shape), QuantType(tensor.tensor_type))
            )
            assert tensor.data.tobytes() == expected.tobytes()
            assert checksum == zlib.crc32(expected)


def test_stock_file_has_no_split_keys(tmp_path: Path) -> None:
    plan = plan_stock_file(tmp_path, "m", metadata(), tensors())
    path = write_files(plan, jobs, "job", threads=1)
    reader = gguf.GGUFReader(path)
    assert not [key for key in reader.fields if key.startswith(("split.", "pearl.expert"))]
    assert int(reader.fields["general.alignment"].contents()) == 32
    assert len(plan_stock_file(tmp_path, "m", metadata(), tensors(), shard_bytes=2000)) > 2


def steps_of_a_whole_run(directory: Path) -> list[str]:
    seen: list[str] = []
    write(directory, before_step=seen.append)
    return seen


def test_stopped_anywhere_it_resumes_to_the_same_bytes(tmp_path: Path) -> None:
    steps = steps_of_a_whole_run(tmp_path / "whole")
    whole = contents(tmp_path / "whole")
    assert {"journal", "open", "tensor", "record", "checksums", "retire", "rename", "clean"} == set(steps)
    for stop_at in range(len(steps)):
        out = tmp_path / f"stop-{stop_at}"
        with pytest.raises(Stopped):
            write(out, before_step=stopping_at(stop_at))
        finished = steps[stop_at] == "clean"
        if not finished:
            for shard in out.glob("*.gguf"):
                with pytest.raises(FileError):
                    GGUFModel.open(shard)
        write(out)
        assert contents(out) == whole, f"stopped before step {stop_at} ({steps[stop_at]})"


def test_resuming_writes_only_what_is_missing(tmp_path: Path) -> None:
    made: list[str] = []

    def counted(tensor: OutputTensor) -> list[Job]:
        made.append(tensor.name)
        return jobs(tensor)

    seen = 0

    def stop(name: str) -> None:
        nonlocal seen
        seen += name == "tensor"
        if seen == 15:
            raise Stopped

    with pytest.raises(Stopped):
        write(tmp_path, before_step=stop)
    write_files(layouts(tmp_path), counted, "job", threads=2)
    assert 0 < len(made) <= 6


def test_a_damaged_partial_is_not_built_on(tmp_path: Path) -> None:
    whole = contents(write(tmp_path / "whole").parent)
    with pytest.raises(Stopped):
        write(tmp_path / "out", before_step=_stop_before("rename"))
    victim = partial_path(layouts(tmp_path / "out")[1].path)
    data = bytearray(victim.read_bytes())
    data[4100] ^= 1
    victim.write_bytes(data)
    write(tmp_path / "out")
    assert contents(tmp_path / "out") == whole


def test_partials_of_another_job_are_not_used(tmp_path: Path) -> None:
    with pytest.raises(Stopped):
        write(tmp_path, before_step=_stop_before("rename"))
    other = write_files(layouts(tmp_path), lambda t: [lambda: content(t) ^ 255], "another job", threads=1)
    with GGUFModel.open(other) as model:
        assert model.read("token_embd.weight").tobytes() == (content(tensors()[0]) ^ 255).tobytes()


def test_an_older_output_stays_until_the_new_one_is_whole(tmp_path: Path) -> None:
    write(tmp_path)
    before = contents(tmp_path)
    with pytest.raises(Stopped):
        write_files(layouts(tmp_path), jobs, "job 2", threads=1, before_step=_stop_before("retire"))
    assert {name: data for name, data in contents(tmp_path).items() if name in before} == before


def inverted_jobs(tensor: OutputTensor) -> list[Job]:
    return [lambda: content(tensor) ^ 255]


def test_old_and_new_never_mix(tmp_path: Path) -> None:
    """Whatever opens after a stop is wholly the old model or wholly the new one."""
    steps = steps_of_a_whole_run(tmp_path / "count")
    for stop_at in range(steps.index("retire"), len(steps)):
        out = tmp_path / f"stop-{stop_at}"
        write(out)
        with pytest.raises(Stopped):
            write_files(layouts(out), inverted_jobs, "job 2", threads=1, before_step=stopping_at(stop_at))
        first = layouts(out)[0].path
        if first.exists():
            with GGUFModel.open(first) as model:
                flipped = {(model.read(t.name) == content(t) ^ 255).all() for t in tensors()}
            assert len(flipped) == 1, f"stopped before step {stop_at} ({steps[stop_at]})"


def _stop_before(step: str):  # type: ignore[no-untyped-def]
    def stop(name: str) -> None:
        if name == step:
            raise Stopped

    return stop


def test_short_space_is_refused_before_the_first_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil._ntuple_diskusage(10**9, 10**9 - 100, 100)  # type: ignore[attr-defined]
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(DiskFullError, match=r"need .* KiB, have 100 B"):
        write(tmp_path / "out")
    assert not list((tmp_path / "out").iterdir())


def test_full_disk_leaves_nothing_finished_and_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = contents(write(tmp_path / "whole").parent)
    real, calls = os.pwrite, 0

    def full(descriptor: int, data: object, at: int) -> int:
        nonlocal calls
        calls += 1
        if calls > 20:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(descriptor, data, at)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(DiskFullError, match=r"no space: need .* have .* rerun"):
        write(tmp_path / "out")
    monkeypatch.undo()
    assert not list((tmp_path / "out").glob("*.gguf"))
    write(tmp_path / "out")
    assert contents(tmp_path / "out") == whole


def test_short_writes_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = contents(write(tmp_path / "whole").parent)
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: real(fd, bytes(data)[:100], at))
    write(tmp_path / "out")
    assert contents(tmp_path / "out") == whole


def test_output_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConversionError, match="file"):
        write(tmp_path / "file" / "out")


def test_an_error_in_a_job_reaches_the_caller(tmp_path: Path) -> None:
    def failing() -> np.ndarray:
        raise ConversionError("tensor x is bad")

    with pytest.raises(ConversionError, match="tensor x is bad"):
        write_files(layouts(tmp_path), lambda _: [failing], "job", threads=2)
    assert not list(tmp_path.glob("*.gguf"))
