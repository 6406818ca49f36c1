"""How often each expert of a model was used in earlier sessions: kept in the cache folder, read at the next start.

It decides only which experts are loaded before the first prompt, and what `--evict static` pins; never a result.
"""

from __future__ import annotations

import hashlib
import os
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from pearl_cli.residency.layer_state import LayerState

_FADE = 0.5  # weight of earlier sessions against the one that ends
_SEED_EVENTS = 64  # a profile counts as much as so many tokens of this session


def profile_path(model_path: Path, file_bytes: int, folder: Path) -> Path:
    """Where the profile of a model lies in `folder`; another file of the same name gets another one by its size."""
    identity = f"{model_path.resolve()}:{file_bytes}"
    return folder / f"usage-{model_path.stem}-{hashlib.sha256(identity.encode()).hexdigest()[:12]}.npz"


def load_profile(path: Path, shape: tuple[int, int]) -> np.ndarray | None:
    """Use counts float64 [L, E], or None when there are none of this shape; a damaged file counts as none."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            counts = np.asarray(stored["use_count"], np.float64)
    except (OSError, ValueError, TypeError, KeyError, EOFError, zipfile.BadZipFile):
        return None
    if counts.shape != shape or not np.isfinite(counts).all() or (counts < 0).any():
        return None
    return counts


def save_profile(path: Path, counts: np.ndarray, earlier: np.ndarray | None) -> None:
    """Merge this session's counts with earlier ones and replace the file in one step. Raises OSError."""
    merged = counts if earlier is None else counts + _FADE * earlier
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as file:
            np.savez_compressed(file, use_count=merged)
        partial.replace(path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise


def seed_counts(profile: np.ndarray) -> np.ndarray:
    """int64 [L, E]: the profile scaled to the weight of a few tokens."""
    totals = profile.sum(axis=1, keepdims=True)
    share = np.divide(profile, totals, out=np.zeros_like(profile), where=totals > 0)
    seeds: np.ndarray = np.rint(share * _SEED_EVENTS).astype(np.int64)
    return seeds


class UsageProfile:
    """counts: float64 [L, E] of earlier sessions, None where there were none."""

    def __init__(self, path: Path, shape: tuple[int, int], notify: Callable[[str], None] | None = None) -> None:
        self.counts = load_profile(path, shape)
        self._path = path
        self._shape = shape
        self._notify = notify
        self._seeds = np.zeros(shape, np.int64)

    def seed(self, layers: Sequence[LayerState | None]) -> None:
        """Let every policy see the profile as the past: hotter experts count as used more, and more recently."""
        if self.counts is None:
            return
        self._seeds = seed_counts(self.counts)
        for state in layers:
            if state is not None:
                history = state.own_cache.history
                history.use_count += self._seeds[state.layer]
                order = np.argsort(-self.counts[state.layer], kind="stable")
                history.last_use[order] = -1 - np.arange(order.size)

    def hottest(self, layers: Sequence[LayerState | None]) -> set[tuple[int, int]]:
        """(layer, expert) of the most used experts that their layers' budgets can hold; never one that was not used."""
        pairs: set[tuple[int, int]] = set()
        for state in layers:
            if state is not None and self.counts is not None:
                row = self.counts[state.layer]
                order = np.argsort(-row, kind="stable")[: state.own_cache.capacity]
                pairs |= {(state.layer, int(expert)) for expert in order if row[expert] > 0}
        return pairs

    def save(self, layers: Sequence[LayerState | None]) -> None:
        """Add this session's uses, without what `seed` put there. A folder that cannot be written is said, no error."""
        counts = np.zeros(self._shape)
        for state in layers:
            if state is not None:
                counts[state.layer] = state.own_cache.history.use_count - self._seeds[state.layer]
        if not counts.any():
            return
        try:
            save_profile(self._path, counts, self.counts)
        except OSError as error:
            if self._notify is not None:
                self._notify(f"{self._path}: the usage profile could not be saved: {error.strerror}")
