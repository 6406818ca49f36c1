"""The form of a tokenizer.json: which parts are objects and which are lists of them, so that what reads them can go by
it. What the values mean is not looked at here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from models.errors import CheckpointError
from models.gguf_cursor import show

_STEPS = ("normalizers", "pretokenizers", "processors")  # what a step of kind Sequence consists of


def check_form(folder: Path, tokenizer: dict[str, Any]) -> None:
    """Raises CheckpointError for a part of another form than any tokenizer has; null is an absent part."""
    where = f"{folder}: tokenizer.json"
    model = tokenizer.get("model")
    _objects(tokenizer.get("added_tokens"), f"{where}: added_tokens")
    _list(model.get("merges") if isinstance(model, dict) else None, f"{where}: model.merges")
    for name in ("normalizer", "pre_tokenizer", "post_processor"):
        _step(tokenizer.get(name), f"{where}: {name}")


def _step(value: Any, where: str) -> None:
    step = _object(value, where)
    _object(step.get("pattern"), f"{where}.pattern")
    for piece in _objects(step.get("single"), f"{where}.single"):
        _object(piece.get("SpecialToken"), f"{where}.single.SpecialToken")
    for name in _STEPS:
        for part in _objects(step.get(name), f"{where}.{name}"):
            _step(part, f"{where}.{name}")


def _objects(value: Any, where: str) -> list[dict[str, Any]]:
    items = _list(value, where)
    if not all(isinstance(item, dict) for item in items):
        raise CheckpointError(f"{where} is no list of JSON objects; download the file again")
    return items


def _list(value: Any, where: str) -> list[Any]:
    if value is not None and not isinstance(value, list):
        raise CheckpointError(f"{where} is {show(repr(value), 20)}, not a list; download the file again")
    return value or []


def _object(value: Any, where: str) -> dict[str, Any]:
    if value is not None and not isinstance(value, dict):
        raise CheckpointError(f"{where} is {show(repr(value), 20)}, not a JSON object; download the file again")
    return value or {}
