"""The folder for what pearl may lose: prompt history, usage profiles of models whose own folder is read-only."""

from __future__ import annotations

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
