"""Files of pearl's own that are empty, cut, damaged or of another kind: the user's words, never a library's."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from models.errors import FileError
from pearl_cli.evaluate.logits_file import read_logits
from pearl_cli.npz_file import read_npz
from pearl_cli.predict.train_data import _read_hidden
from pearl_cli.routing.lambda_file import stored_lambda
from pearl_cli.routing.settings import RoutingSettings


def npz(**arrays: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
    return file.getvalue()


def npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


WHOLE = npz(a=np.arange(1000))
DIRECTORY = WHOLE.index(b"PK\x01\x02")  # of the zip; its flags stand 8 bytes on
OTHERS = {
    "empty": b"",
    "text": b"hello world\n" * 9,
    "zeros": bytes(200),
    "npy": npy(np.zeros(3, np.float32)),
    "npz without it": npz(b=np.arange(3)),
    "cut": WHOLE[:-30],
    "pickle": npz(a=np.array([{}], object)),
    "encrypted": WHOLE[: DIRECTORY + 8] + b"\x01" + WHOLE[DIRECTORY + 9 :],
}


@pytest.mark.parametrize("raw", OTHERS.values(), ids=OTHERS)
def test_what_is_no_npz_file_of_these_arrays(raw: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.npz").write_bytes(raw)
    with pytest.raises(ValueError, match=r"no .npz file with a, or a damaged one"):
        read_npz(tmp_path / "x.npz", ["a"])


def flipped(raw: bytes, seed: int) -> bytes:
    rng, changed = random.Random(seed), bytearray(raw)
    for _ in range(rng.choice([1, 3])):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


@pytest.mark.parametrize(
    ("whole", "read", "fault"),
    [
        (WHOLE, lambda path: read_npz(path, ["a"]), ValueError),
        (npy(np.zeros((4, 3), np.float32)), lambda path: read_logits(path, (4, 3)), FileError),
    ],
    ids=["npz", "logits"],
)
def test_flipped_bits_are_a_fault_of_the_file_or_change_nothing_that_is_read(
    whole: bytes, read: Callable[[Path], object], fault: type[Exception], tmp_path: Path
) -> None:
    faults = 0
    for seed in range(200):
        (tmp_path / "x").write_bytes(flipped(whole, seed))
        try:
            read(tmp_path / "x")
        except fault:
            faults += 1
    assert faults > 50


@pytest.mark.parametrize("name", ["empty", "text", "zeros", "npz without it"])
def test_logits_of_another_kind(name: str, tmp_path: Path) -> None:
    (tmp_path / "l.npy").write_bytes(OTHERS[name])
    with pytest.raises(FileError, match=r"l.npy: not a .npy file of pearl eval --logits"):
        read_logits(tmp_path / "l.npy", (4, 3))
    with pytest.raises(FileError, match="Is a directory"):
        read_logits(tmp_path, (4, 3))


@pytest.mark.parametrize("name", OTHERS)
def test_router_inputs_of_another_kind(name: str, tmp_path: Path) -> None:
    (tmp_path / "h.npz").write_bytes(OTHERS[name])
    with pytest.raises(FileError, match=r"^--hidden .*h.npz: damaged, or no router inputs of pearl trace"):
        _read_hidden(tmp_path / "h.npz")


@pytest.mark.parametrize(
    ("name", "array"),
    [("hidden", np.zeros(3)), ("layers", np.zeros(2)), ("turn", np.zeros(2, np.int32)), ("step", np.array(1))],
)
def test_router_inputs_of_other_shapes(name: str, array: np.ndarray, tmp_path: Path) -> None:
    index = dict.fromkeys(("turn", "step", "token"), np.zeros(3, np.int32))
    arrays = {"hidden": np.zeros((3, 2, 5), np.float16), "layers": np.arange(2), "fingerprint": np.array("f"), **index}
    (tmp_path / "h.npz").write_bytes(npz(**arrays))
    assert _read_hidden(tmp_path / "h.npz").keys() == arrays.keys()
    (tmp_path / "h.npz").write_bytes(npz(**{**arrays, name: array}))
    with pytest.raises(FileError, match="not arrays as pearl trace writes them"):
        _read_hidden(tmp_path / "h.npz")


@pytest.mark.parametrize("value", ["much", None, -1, float("nan"), [0.1]])
def test_a_stored_factor_is_a_number(value: object, tmp_path: Path) -> None:
    entry = dict.fromkeys(("routing", "top_j", "inserts", "steer", "evict", "price", "text"), "")
    content = {"fingerprint": "f", "entries": [{**entry, "residency": 0.5, "lambda": value}]}
    (tmp_path / "m.routing.json").write_text(json.dumps(content))
    with pytest.raises(FileError, match=r"m.routing.json: .*no number from 0 up.*remove it"):
        stored_lambda(tmp_path / "m.gguf", "f", RoutingSettings("psr", None, 0.01), "lru", 0.25)
