"""Arrays out of a .npz file, whatever the file turns out to be."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np


def read_npz(path: Path, names: Sequence[str]) -> dict[str, np.ndarray]:
    """The arrays called `names`. Raises OSError for a file that cannot be opened, ValueError for one that is damaged,
    no .npz, or without one of them.
    """
    with path.open("rb") as file:
        try:
            with np.lib.npyio.NpzFile(file, allow_pickle=False) as stored:
                arrays = {name: np.asarray(stored[name]) for name in names}
        except Exception as error:  # what zipfile, zlib and numpy raise for damaged bytes is not told by any of them
            raise ValueError(f"no .npz file with {', '.join(names)}, or a damaged one") from error
    return arrays
