"""Logits of scored positions as one .npy file, float32 [positions, vocabulary]: written row by row, read in place."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from models.errors import FileError


class LogitsWriter:
    """A context manager; the file appears under its name only when everything was written."""

    def __init__(self, path: Path, shape: tuple[int, int]) -> None:
        """Raises FileError where the file cannot be made."""
        self._path = path
        self._partial = path.with_name(f"{path.name}.partial")
        try:
            self._out = np.lib.format.open_memmap(self._partial, mode="w+", dtype=np.float32, shape=shape)
        except OSError as error:
            raise FileError(f"{path}: {error.strerror}") from error

    def write(self, row: int, logits: np.ndarray) -> None:
        self._out[row : row + len(logits)] = logits

    def __enter__(self) -> LogitsWriter:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._out.flush()
        del self._out
        if kind is None:
            self._partial.replace(self._path)
        else:
            self._partial.unlink(missing_ok=True)


def read_logits(path: Path, shape: tuple[int, int]) -> np.ndarray:
    """The saved logits, mapped. Raises FileError for a file that is none, or of other positions or another vocabulary.
    """
    try:
        logits: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
    except OSError as error:
        raise FileError(f"{path}: {error.strerror or error}") from error
    except ValueError as error:
        raise FileError(f"{path}: not a .npy file of pearl eval --logits") from error
    if logits.dtype != np.float32 or logits.shape != shape:
        raise FileError(
            f"{path}: it holds {logits.dtype} {list(logits.shape)}, this text gives float32 {list(shape)}: "
            "save it from the same text with the same -c and --score"
        )
    return logits
