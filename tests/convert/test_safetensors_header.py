"""A safetensors file that lies or is not one gives one named line, before anything is allocated for it."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest

from convert.safetensors_header import read_safetensors_header
from models.errors import CheckpointError
from tests.convert.checkpoints import write_safetensors


def test_a_sound_file_is_read(tmp_path: Path) -> None:
    path = write_safetensors(
        tmp_path / "a.safetensors", {"x": ("F32", np.ones((2, 3), np.float32)), "y": ("U8", np.ones(5, np.uint8))}
    )
    tensors = {tensor.name: tensor for tensor in read_safetensors_header(path)}
    assert tensors["x"].shape == (2, 3)
    assert tensors["y"].offset == tensors["x"].offset + 24
    assert path.read_bytes()[tensors["y"].offset :] == bytes([1] * 5)


def test_cut_at_every_fourth_byte(tmp_path: Path) -> None:
    whole = write_safetensors(tmp_path / "whole", {"x": ("F32", np.ones(200, np.float32))}).read_bytes()
    path = tmp_path / "cut.safetensors"
    for end in [*range(0, len(whole), 4), len(whole) - 1]:
        path.write_bytes(whole[:end])
        with pytest.raises(CheckpointError, match="download it again") as caught:
            read_safetensors_header(path)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9", "git lfs pull"),
        (b"<!DOCTYPE html><html></html>", "HTML"),
        (b"", "empty"),
        (b"PK\x03\x04" + bytes(40), "pickle"),
        (b"GGUF" + bytes(40), "not a safetensors file"),
        (struct.pack("<Q", 1 << 63) + b"{" + bytes(40), "claims 9223372036854775808 bytes"),
        (struct.pack("<Q", 10) + b"{\xff\xff" + bytes(40), "no valid JSON"),
    ],
)
def test_other_content_is_named(content: bytes, says: str, tmp_path: Path) -> None:
    (tmp_path / "x.safetensors").write_bytes(content)
    with pytest.raises(CheckpointError, match=says):
        read_safetensors_header(tmp_path / "x.safetensors")


ENTRY = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    ("entries", "says"),
    [
        ({"x": {**ENTRY, "data_offsets": [8, 4]}}, "needs bytes"),
        ({"x": {**ENTRY, "data_offsets": [0, 1 << 62]}}, "needs bytes"),
        ({"x": {**ENTRY, "data_offsets": [-8, 0]}}, "malformed"),
        ({"x": {**ENTRY, "dtype": "F12"}}, "unknown dtype 'F12'"),
        ({"x": {**ENTRY, "shape": [3]}}, "does not take"),
        ({"x": {**ENTRY, "shape": [1 << 62, 4]}}, "does not take"),
        ({"x": {**ENTRY, "shape": [True, 2]}}, "malformed"),
        ({"x": 5}, "malformed"),
        ({"x": ENTRY, "y": {**ENTRY, "data_offsets": [4, 12]}}, "overlap"),
        ({}, "no tensors"),
    ],
)
def test_lies_in_the_header_are_named(entries: dict[str, object], says: str, tmp_path: Path) -> None:
    text = json.dumps(entries).encode()
    (tmp_path / "x.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(16))
    with pytest.raises(CheckpointError, match=says):
        read_safetensors_header(tmp_path / "x.safetensors")


def test_the_same_name_twice_is_refused(tmp_path: Path) -> None:
    text = b'{"x": %s, "x": %s}' % (json.dumps(ENTRY).encode(), json.dumps(ENTRY).encode())
    (tmp_path / "x.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(16))
    with pytest.raises(CheckpointError, match="appears twice"):
        read_safetensors_header(tmp_path / "x.safetensors")
