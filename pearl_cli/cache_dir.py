"""The folder for what pearl may lose: prompt history, usage profiles of models whose own folder is read-only. And a
place for compiled kernels where there is none.
"""

from __future__ import annotations

import atexit
import os
from pathlib import Path


def cache_dir() -> Path | None:
    """`$XDG_CACHE_HOME/pearl` or `~/.cache/pearl`, created; None where that is impossible."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    folder = Path(base) / "pearl"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None
    return folder if os.access(folder, os.W_OK) else None


def make_room_for_kernels(sources: Path) -> None:
    """Numba refuses to compile what it can keep nowhere. Where neither `sources` nor the user's cache folder can be
    written, the code goes into a folder of this process alone, and the next start compiles it again.
    """
    beside = sources / "__pycache__"
    can_keep = os.access(beside if beside.is_dir() else sources, os.W_OK)
    if "NUMBA_CACHE_DIR" in os.environ or can_keep or cache_dir() is not None:
        return
    import shutil
    import tempfile

    folder = os.environ["NUMBA_CACHE_DIR"] = tempfile.mkdtemp(prefix="pearl-kernels-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
