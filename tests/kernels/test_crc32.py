"""The fast checksum is zlib's, for every length around its rounds and from any value on."""

from __future__ import annotations

import zlib

import numpy as np
import pytest

from kernels.cpu import crc32 as module
from kernels.cpu.crc32 import crc32

SIZES = [0, 1, 63, 64, 4095, 4096, 4097, 4159, 4160, 70_001]


@pytest.mark.parametrize("n_bytes", SIZES)
@pytest.mark.parametrize("value", [0, 1, 0x12345678, 0xFFFFFFFF])
def test_is_zlibs(n_bytes: int, value: int) -> None:
    data = np.random.default_rng(n_bytes).integers(0, 256, n_bytes, dtype=np.uint8)
    assert crc32(data, value) == zlib.crc32(data.data, value)


def test_any_array_and_any_alignment() -> None:
    words = np.random.default_rng(0).standard_normal((40, 50)).astype(np.float32)
    assert crc32(words) == zlib.crc32(words.tobytes())
    raw = words.reshape(-1).view(np.uint8)
    for start in range(1, 20):
        assert crc32(raw[start:]) == zlib.crc32(raw[start:].tobytes())


def test_pieces_go_on_from_each_other() -> None:
    data = np.random.default_rng(1).integers(0, 256, 50_000, dtype=np.uint8)
    value = 0
    for piece in np.split(data, [1, 5000, 5064, 30_000]):
        value = crc32(piece, value)
    assert value == zlib.crc32(data.data)


def test_machines_without_the_instruction_use_zlib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_fold", lambda: None)
    data = np.arange(10_000, dtype=np.uint32)
    assert crc32(data) == zlib.crc32(data.tobytes())
