"""Reads land byte for byte, directly or through the page cache; cut files and missing files are named; the throttle is
a serial link.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest

from models.errors import FileError, ReadFailure
from pearl_cli.residency import disk_reader
from pearl_cli.residency.arena import map_region
from pearl_cli.residency.disk_reader import DiskReader
from pearl_cli.residency.throttle import Throttle

PAGES = 5


@pytest.fixture
def data_file(tmp_path: Path) -> Path:
    path = tmp_path / "data"
    path.write_bytes(np.random.default_rng(0).bytes(PAGES * 4096 - 100))
    return path


@pytest.mark.parametrize("direct", [True, False])
def test_bytes_are_those_of_the_file(data_file: Path, direct: bool) -> None:
    reader = DiskReader([data_file], direct=direct)
    out = map_region(2 * 4096)
    reader.read(0, 3 * 4096, memoryview(out.data), 2 * 4096 - 100)  # the file ends inside the last page
    assert out[: 2 * 4096 - 100].tobytes() == data_file.read_bytes()[3 * 4096 :]
    reader.close()


def test_a_file_system_without_direct_reads_is_said_once(data_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.open

    def refuse(path: str, flags: int, *rest: int) -> int:
        if flags & disk_reader._DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return real(path, flags, *rest)

    monkeypatch.setattr(disk_reader.os, "open", refuse)
    said: list[str] = []
    reader = DiskReader([data_file, data_file], notify=said.append)
    assert reader.direct == [False, False]
    assert len(said) == 1
    assert "through the page cache" in said[0]
    reader.close()


def test_a_read_that_refuses_direct_falls_back(data_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = os.preadv, []

    def preadv(fd: int, buffers: list[memoryview], offset: int) -> int:
        calls.append(fd)
        if len(calls) == 1:
            raise OSError(errno.EINVAL, "Invalid argument")
        return real(fd, buffers, offset)

    monkeypatch.setattr(disk_reader.os, "preadv", preadv)
    said: list[str] = []
    reader = DiskReader([data_file], notify=said.append)
    was_direct = reader.direct[0]
    if not was_direct:
        pytest.skip("this file system has no direct reads to refuse")
    out = map_region(4096)
    reader.read(0, 0, memoryview(out.data), 4096)
    assert out.tobytes() == data_file.read_bytes()[:4096]
    assert reader.direct == [False]
    assert len(said) == 1
    reader.close()


def test_a_short_read_is_continued(data_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.preadv
    monkeypatch.setattr(disk_reader.os, "preadv", lambda fd, bufs, offset: real(fd, [bufs[0][:512]], offset))
    reader = DiskReader([data_file])
    out = map_region(8192)
    reader.read(0, 0, memoryview(out.data), 8192)
    assert out.tobytes() == data_file.read_bytes()[:8192]
    reader.close()


def test_a_file_cut_short_while_in_use(data_file: Path) -> None:
    reader = DiskReader([data_file])
    os.truncate(data_file, 4096)
    with pytest.raises(ReadFailure, match=r"the file ends at byte 4096, 4096 bytes of an expert are missing"):
        reader.read(0, 4096, memoryview(map_region(4096).data), 4096)
    reader.close()


def test_an_io_error_names_file_and_offset(data_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = DiskReader([data_file])

    def fail(*_: object) -> int:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(disk_reader.os, "preadv", fail)
    with pytest.raises(ReadFailure, match=f"{data_file.name}: reading at byte 8192 failed: Input/output error"):
        reader.read(0, 8192, memoryview(map_region(4096).data), 4096)
    reader.close()


def test_a_missing_file_is_named(tmp_path: Path, data_file: Path) -> None:
    with pytest.raises(FileError, match="gone: No such file"):
        DiskReader([data_file, tmp_path / "gone"])


def test_throttle_is_one_serial_link() -> None:
    clock = {"now": 10.0}
    throttle = Throttle(1000.0, now=lambda: clock["now"], sleep=lambda s: clock.update(now=clock["now"] + s))
    assert throttle.reserve(500) == 10.5
    assert throttle.reserve(250) == 10.75  # a second reader waits behind the first
    throttle.wait_until(10.75)
    assert clock["now"] == 10.75
    clock["now"] = 20.0
    assert throttle.reserve(1000) == 21.0  # idle time is not saved up


def test_throttle_needs_a_rate() -> None:
    with pytest.raises(ValueError, match="positive rate"):
        Throttle(0)


@pytest.mark.parametrize("direct", [True, False])
def test_one_read_fills_several_places(data_file: Path, direct: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = DiskReader([data_file], direct=direct)
    outs = [map_region(4096), map_region(2 * 4096), map_region(4096)]
    real, calls = os.preadv, []
    monkeypatch.setattr(disk_reader.os, "preadv", lambda *given: calls.append(given) or real(*given))
    reader.read_scattered(0, 4096, [memoryview(out.data) for out in outs], 4 * 4096 - 100)
    assert b"".join(out.tobytes() for out in outs)[: 4 * 4096 - 100] == data_file.read_bytes()[4096:]
    assert len(calls) == 1
    reader.close()


@pytest.mark.parametrize("got", [0, 5000, 4096, 3 * 4096])
def test_a_scattered_read_that_stops_early_goes_on(
    got: int, data_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = DiskReader([data_file], direct=False)
    views = [memoryview(map_region(n * 4096).data) for n in (1, 2, 1)]
    real = os.preadv

    def short(fd: int, buffers: list[memoryview], offset: int) -> int:
        if len(buffers) == 1:
            return real(fd, buffers, offset)
        left = got
        for buffer in buffers:
            buffer[: min(left, len(buffer))] = os.pread(fd, min(left, len(buffer)), offset)
            offset, left = offset + len(buffer), max(0, left - len(buffer))
        return got

    monkeypatch.setattr(disk_reader.os, "preadv", short)
    reader.read_scattered(0, 0, views, 4 * 4096)
    assert b"".join(map(bytes, views)) == data_file.read_bytes()[: 4 * 4096]
    reader.close()


def test_a_file_cut_within_a_scattered_read_is_named(data_file: Path) -> None:
    reader = DiskReader([data_file])
    with data_file.open("r+b") as file:
        file.truncate(2 * 4096)
    outs = [memoryview(map_region(4096).data) for _ in range(3)]
    with pytest.raises(ReadFailure, match=f"{data_file}.*missing"):
        reader.read_scattered(0, 0, outs, 3 * 4096)
    reader.close()
