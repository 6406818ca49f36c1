"""Calibrated bonus factors beside a model: NAME.routing.json, written by pearl eval, read by every run with
`--lambda auto:PRICE%`.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

from models.errors import FileError, UsageError
from models.gguf_split import name_of_whole
from pearl_cli.result_file import result_file
from pearl_cli.routing.settings import RoutingSettings

_NUMBERS = ("residency", "lambda")
_SAME = ("routing", "top_j", "inserts", "steer", "evict", "price")


def lambda_path(model: Path) -> Path:
    """NAME.routing.json beside NAME.gguf or NAME-00001-of-000NN.gguf."""
    return model.with_name(f"{name_of_whole(model)}.routing.json")


def _key(settings: RoutingSettings, evict: str) -> dict[str, Any]:
    return {
        "routing": settings.name,
        "top_j": settings.top_j,
        "inserts": settings.inserts,
        "steer": settings.steering.key(),
        "evict": evict,
        "price": settings.lambda_price,
    }


def store_lambda(
    model: Path, fingerprint: str, settings: RoutingSettings, evict: str, residency: float, factor: float, text: str
) -> Path:
    """Add or replace the entry of `settings`, found at `residency` on `text`. Raises WriteFailure, and FileError where
    the file that is there is not of this kind.
    """
    path = lambda_path(model)
    entry = {**_key(settings, evict), "residency": residency, "lambda": factor, "text": text}
    same = (*_SAME, "residency")
    kept = [old for old in _entries(path, fingerprint) if any(old[name] != entry[name] for name in same)]
    content = json.dumps({"fingerprint": fingerprint, "entries": [*kept, entry]}, indent=1)
    with result_file(path) as place:
        place.write_text(content, encoding="utf-8")
    return path


def stored_lambda(
    model: Path, fingerprint: str, settings: RoutingSettings, evict: str, residency: float
) -> tuple[RoutingSettings, str]:
    """(`settings` with the stored factor, where it comes from); of several residencies the nearest. Raises UsageError
    where none is stored.
    """
    path = lambda_path(model)
    wanted = _key(settings, evict)
    fitting = [entry for entry in _entries(path, fingerprint) if all(entry[name] == wanted[name] for name in _SAME)]
    if not fitting:
        shown = {**wanted, "steer": settings.steering.label(), "price": f"{100 * wanted['price']:g}%"}
        asked = ", ".join(f"{name.replace('_', '-')} {value}" for name, value in shown.items() if value != "")
        raise UsageError(
            f"--lambda auto: {path.name} has no factor for {asked}; find it first: pearl eval -f TEXT with the same "
            "--routing, --lambda, --inserts, --top-j, --steer, --evict and --residency"
        )
    best = min(fitting, key=lambda entry: abs(entry["residency"] - residency))
    source = f"lambda {best['lambda']:g}, found on {best['text']} at a residency of {100 * best['residency']:g}%"
    return replace(settings, lambda_=float(best["lambda"])), source


def _entries(path: Path, fingerprint: str) -> list[dict[str, Any]]:
    """What is stored for this very model; nothing for another one's file."""
    if not path.is_file():
        return []
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        entries: list[dict[str, Any]] = content["entries"]
        if content["fingerprint"] != fingerprint:
            return []
        missing = [name for entry in entries for name in (*_SAME, *_NUMBERS, "text") if name not in entry]
        if not missing and not all(_counts(entry[name]) for entry in entries for name in _NUMBERS):
            raise ValueError("a factor or a residency is no number from 0 up")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise FileError(f"{path}: not a file of pearl eval --lambda auto ({error}); remove it") from error
    if missing:
        raise FileError(f"{path}: an entry without {missing[0]}; remove the file and find factors anew with pearl eval")
    return entries


def _counts(value: object) -> bool:
    return isinstance(value, (int, float)) and 0 <= value < math.inf
