"""Logits of scored positions as one .npy file, float32 [positions, vocabulary]: written row by row, read in place."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from models.errors import FileError
from pearl_cli.result_file import result_file


@contextmanager
def logits_writer(path: Path, shape: tuple[int, int]) -> Iterator[Callable[[np.ndarray], None]]:
    """What to hand the rows to, in order; the file appears under its name only when everything was written. Its room
    on the disk is taken at once where the system can do that, so that a full one is found before the work. Raises
    WriteFailure, which names --logits.
    """
    about = {"descr": "<f4", "fortran_order": False, "shape": shape}
    with result_file(path, "--logits") as place, place.open("wb") as out:
        np.lib.format.write_array_header_1_0(out, about)
        out.flush()
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(out.fileno(), 0, out.tell() + 4 * shape[0] * shape[1])
        yield lambda rows: _write(out.write, rows)


def _write(write: Callable[[bytes], int], rows: np.ndarray) -> None:
    write(np.ascontiguousarray(rows, "<f4").tobytes())


def read_logits(path: Path, shape: tuple[int, int]) -> np.ndarray:
    """The saved logits, mapped. Raises FileError for a file that is none, or of other positions or another vocabulary.
    """
    try:
        logits: np.ndarray = np.lib.format.open_memmap(path, mode="r")
    except OSError as error:
        raise FileError(f"{path}: {error.strerror or error}") from error
    except Exception as error:  # what numpy raises for a damaged header is not told by it
        raise FileError(f"{path}: not a .npy file of pearl eval --logits, or a damaged one") from error
    if logits.dtype != np.float32 or logits.shape != shape:
        raise FileError(
            f"{path}: it holds {logits.dtype} {list(logits.shape)}, this text gives float32 {list(shape)}: "
            "save it from the same text with the same -c and --score"
        )
    return logits
