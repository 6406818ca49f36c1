"""Typed access to one Hugging Face `config.json`: a wrong type or a missing value is an error by name, a default is
noted.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from models.errors import CheckpointError, UnsupportedError

N = TypeVar("N", int, float, bool)
MAX_INTEGER = 2**31 - 1  # where a GGUF has a number for each layer, it has 32 bits and a sign
MAX_REAL = float(np.finfo(np.float32).max)


class HfValues:
    """The values at `path`; those of a `text_config` win. `notes` collects a line for every default that was used."""

    def __init__(self, folder: Path, values: dict[str, Any]) -> None:
        self.path = folder / "config.json"
        self.values = {**values, **(values["text_config"] if isinstance(values.get("text_config"), dict) else {})}
        self.notes: list[str] = []

    @classmethod
    def of(cls, parent: HfValues, values: dict[str, Any]) -> HfValues:
        """A part of `parent`, whose notes it shares."""
        part = cls(parent.path.parent, values)
        part.notes = parent.notes
        return part

    def integer(self, *keys: str, default: int | None = None) -> int:
        """The whole number under the first of `keys` that is there. Raises CheckpointError."""
        value = self._first(keys)
        if value is None:
            return self.default(keys[0], default)
        if type(value) is not int or value < 0:
            raise CheckpointError(f"{self.path}: {keys[0]} is {value!r}, not a whole number")
        if value > MAX_INTEGER:
            raise CheckpointError(f"{self.path}: {keys[0]} is {value}; a GGUF holds at most {MAX_INTEGER}")
        return value

    def integer_of_layers(self, *keys: str, default: int | None = None) -> int:
        """`integer`, where config.json may hold a list of it, one for each layer, all the same. Raises UnsupportedError
        for others.
        """
        key = next((key for key in keys if self.values.get(key) is not None), keys[0])
        value = self.values.get(key)
        if not isinstance(value, list):
            return self.integer(key, default=default)
        if not value or any(item != value[0] for item in value):
            raise UnsupportedError(f"{self.path}: {key} differs from layer to layer, which is not supported")
        return HfValues.of(self, {key: value[0]}).integer(key)

    def optional_integer(self, key: str) -> int | None:
        """The whole number under `key`, None where it is missing or null. Raises CheckpointError."""
        return None if self.values.get(key) is None else self.integer(key)

    def layer_types(self, *known: str, default: list[str] | None = None) -> list[str]:
        """The kind of each layer, one of `known`. Raises UnsupportedError for another kind or number of layers."""
        stated, n_layers = self.values.get("layer_types"), self.integer("num_hidden_layers")
        kinds = default if stated is None else stated
        if not isinstance(kinds, list) or len(kinds) != n_layers:
            raise UnsupportedError(f"{self.path}: layer_types does not name the kind of each of {n_layers} layers")
        strange = [kind for kind in kinds if kind not in known]
        if strange:
            raise UnsupportedError(
                f"{self.path}: layer_types: layer type {strange[0]!r} is not supported; supported: {', '.join(known)}"
            )
        return kinds

    def real(self, *keys: str, default: float | None = None) -> float:
        value = self._first(keys)
        return self.default(keys[0], default) if value is None else self.checked_real(keys[0], value)

    def optional_real(self, key: str) -> float | None:
        """The number under `key`, None where it is missing or null. Raises CheckpointError."""
        return None if self.values.get(key) is None else self.real(key)

    def checked_real(self, key: str, value: Any) -> float:
        """`value`, found under `key`, as a number that float32 can hold. Raises CheckpointError."""
        if type(value) not in (int, float):
            raise CheckpointError(f"{self.path}: {key} is {value!r}, not a number")
        if not abs(value) <= MAX_REAL:  # nan too
            raise CheckpointError(f"{self.path}: {key} is {value}; a GGUF holds finite numbers up to {MAX_REAL:.3g}")
        return float(value)

    def flag(self, key: str) -> bool | None:
        value = self.values.get(key)
        if value is not None and type(value) is not bool:
            raise CheckpointError(f"{self.path}: {key} is {value!r}, not true or false")
        return value

    def rope(self) -> dict[str, Any]:
        """Rope parameters: `rope_parameters` since transformers 5, `rope_scaling` before."""
        rope = self.values.get("rope_parameters") or self.values.get("rope_scaling") or {}
        if not isinstance(rope, dict):
            raise CheckpointError(f"{self.path}: rope parameters are no JSON object")
        return rope

    def rope_of(self, kind: str) -> HfValues:
        """Rope parameters of one kind of layers, where each has its own. Raises UnsupportedError."""
        rope = self.rope().get(kind)
        if not isinstance(rope, dict):
            raise UnsupportedError(f"{self.path}: rope_parameters without {kind!r} are not supported")
        return HfValues.of(self, rope)

    def rope_sections(self, default: list[int] | None = None) -> tuple[int, ...]:
        """Components that rotate with each axis of a picture, filled up to four; text has one position for all. Raises
        CheckpointError.
        """
        sections = self.rope().get("mrope_section", default)
        if not isinstance(sections, list) or not all(map(_is_count, sections)) or len(sections) > 4:
            raise CheckpointError(f"{self.path}: mrope_section is {sections!r}, not up to four whole numbers")
        return tuple(sections + [0] * (4 - len(sections)))

    def require(self, key: str, *allowed: Any) -> None:
        """Raise UnsupportedError where `key` is there and none of `allowed` (null counts as not there)."""
        value = self.values.get(key)
        if value is not None and value not in allowed:
            names = " or ".join(str(item) for item in allowed)
            raise UnsupportedError(f"{self.path}: {key} {value!r} is not supported; supported: {names}")

    def default(self, key: str, default: N | None) -> N:
        """`default`, noted; raises CheckpointError where there is none."""
        if default is None:
            raise CheckpointError(f"{self.path}: {key} is missing")
        note = f"config.json has no {key}; {default} is used"
        if note not in self.notes:  # a value may be read more than once
            self.notes.append(note)
        return default

    def _first(self, keys: tuple[str, ...]) -> Any:
        return next((self.values[key] for key in keys if self.values.get(key) is not None), None)


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MAX_INTEGER
