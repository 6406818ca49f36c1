"""How often each expert of a model was used in earlier sessions: kept beside the model, or in the cache folder where
the model's own cannot be written, and read at the next start.

It decides only which experts are loaded before the first prompt, and what `--evict static` pins; never a result.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from models.gguf_split import name_of_whole
from pearl_cli.npz_file import read_npz
from pearl_cli.residency.layer_state import LayerState

_FADE = 0.5  # weight of earlier sessions against the one that ends
_SEED_EVENTS = 64  # a profile counts as much as so many tokens of this session


def profile_places(model_path: Path, model_bytes: int, cache: Path | None, beside: bool = True) -> list[Path]:
    """Where the profile of a model may lie, best first: NAME.usage.npz beside the model (`beside`), then in the folder
    `cache`, where another file of the same name gets another one by its size.
    """
    identity = hashlib.sha256(f"{model_path.resolve()}:{model_bytes}".encode()).hexdigest()[:12]
    places = [model_path.with_name(f"{name_of_whole(model_path)}.usage.npz")] if beside else []
    return places + ([cache / f"usage-{model_path.stem}-{identity}.npz"] if cache is not None else [])


def load_profile(path: Path, model_bytes: int, shape: tuple[int, int]) -> np.ndarray | None:
    """Use counts float64 [L, E], or None when there are none of this model and shape; a damaged file counts as none."""
    try:
        stored = read_npz(path, ["use_count", "model_bytes"])
        counts, of_model = stored["use_count"].astype(np.float64), int(stored["model_bytes"]) == model_bytes
    except (OSError, ValueError, TypeError):
        return None
    if not of_model or counts.shape != shape or not np.isfinite(counts).all() or (counts < 0).any():
        return None
    return counts


def save_profile(path: Path, counts: np.ndarray, earlier: np.ndarray | None, model_bytes: int) -> None:
    """Merge this session's counts with earlier ones and replace the file in one step. Raises OSError."""
    merged = counts if earlier is None else counts + _FADE * earlier
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as file:
            np.savez_compressed(file, use_count=merged, model_bytes=np.int64(model_bytes))
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

    def __init__(
        self,
        places: Sequence[Path],
        model_bytes: int,
        shape: tuple[int, int],
        notify: Callable[[str], None] | None = None,
    ) -> None:
        """places: of `profile_places`; the first that holds a profile is read, the first that can be written is
        written.
        """
        found = (load_profile(place, model_bytes, shape) for place in places)
        self.counts = next((counts for counts in found if counts is not None), None)
        self._places = places
        self._model_bytes = model_bytes
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
        fault = ""
        for place in self._places:
            try:
                save_profile(place, counts, self.counts, self._model_bytes)
                return
            except OSError as error:
                fault = f"{place}: the usage profile could not be saved: {error.strerror}"
        if self._notify is not None:
            self._notify(fault)
