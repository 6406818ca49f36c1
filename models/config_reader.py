"""Strict typed reads of one architecture's metadata: the right type or an error, a default only from the table and
always noted.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from models.config_keys import INERT, Architecture, Key, Values
from models.errors import GGUFError, UnsupportedError
from models.gguf_cursor import show

_NOUNS = {int: "a whole number", float: "a float", bool: "a bool", str: "a string"}
# An unknown key with one of these words in its name may change what the model computes, so it is not passed over.
_MATHS = re.compile(r"attention|attn|bias|cap|clamp|expert|gat(e|ing)|moe|norm|rope|rout|scale|ssm|swiglu|window")


@dataclass(slots=True)
class ConfigReader:
    """Reads `PREFIX.key` from `metadata`; `where` is the file, for messages. `defaults_used` grows with each default
    taken.
    """

    metadata: dict[str, Any]
    prefix: str
    where: str
    defaults_used: list[str] = field(default_factory=list)

    def read_fields(self, table: Architecture, facts: Values | None = None) -> dict[str, Any]:
        """Every field of the table, after the `facts` that defaults may ask for.

        Raises GGUFError for a key that is missing or of the wrong type.
        """
        values: dict[str, Any] = dict(facts or {})
        for name, key in table.fields.items():
            values[name] = self._read(key, values)
        return values

    def read_optional(self, name: str, kind: type) -> Any:
        """The value of one key, or None."""
        return self._typed(name, kind) if f"{self.prefix}.{name}" in self.metadata else None

    def _per_layer(self, name: str, kind: type) -> Any:
        """The value of one key, a tuple where the file has one for each layer."""
        value = self.metadata[f"{self.prefix}.{name}"]
        if not isinstance(value, np.ndarray):
            return self._typed(name, kind)
        items = tuple(value.tolist())
        if any(type(item) is not kind for item in items):
            raise GGUFError(
                f"{self.where}: metadata '{self.prefix}.{name}' must be {_NOUNS[kind]} for each layer, "
                f"not {show(repr(items))}"
            )
        return items

    def read_pattern(self, name: str, period: int, num_layers: int) -> int | tuple[bool, ...]:
        """A flag for each layer, or the period of a repeating pattern, `period` where the file says nothing.

        Raises GGUFError for anything else.
        """
        full = f"{self.prefix}.{name}"
        if full not in self.metadata:
            self.defaults_used.append(f"{full} = {period} (the architecture's rule)")
            return period
        value = self.metadata[full]
        if type(value) is int and value > 0:
            return value
        if isinstance(value, np.ndarray) and value.dtype.kind in "biu" and value.size >= num_layers:
            return tuple(bool(flag) for flag in value[:num_layers])
        raise GGUFError(f"{self.where}: metadata '{full}' must be a period or a flag for each of {num_layers} layers")

    def refuse_maths(self, table: Architecture) -> tuple[str, ...]:
        """Refuse keys that ask for maths outside the table; returns the harmless keys that nobody reads.

        Raises UnsupportedError naming the key and its value.
        """
        known = {key.name for key in table.fields.values()}
        if table.window_period:
            known.add("attention.sliding_window_pattern")
        unread = []
        for full in self.metadata:
            if not full.startswith(f"{self.prefix}."):
                continue
            name = full[len(self.prefix) + 1 :]
            if name in table.neutral:
                self._require_neutral(full, table.neutral[name])
            elif name not in known and name not in INERT:
                if _MATHS.search(name):
                    raise UnsupportedError(
                        f"{self.where}: metadata {show(full)} = {show(str(self.metadata[full]))} is not implemented "
                        f"for '{self.prefix}' and may change what the model computes"
                    )
                unread.append(full)
        return tuple(unread)

    def _read(self, key: Key, values: dict[str, Any]) -> Any:
        if f"{self.prefix}.{key.name}" in self.metadata:
            return (self._per_layer if key.per_layer else self._typed)(key.name, key.kind)
        if key.required:
            raise GGUFError(
                f"{self.where}: metadata '{self.prefix}.{key.name}' is missing; architecture '{self.prefix}' needs it"
            )
        value = key.default(values) if callable(key.default) else key.default
        if key.matters(values):
            self.defaults_used.append(f"{self.prefix}.{key.name} = {value} ({key.why})")
        return value

    def _typed(self, name: str, kind: type) -> Any:
        full = f"{self.prefix}.{name}"
        value = self.metadata[full]
        if isinstance(value, np.ndarray) and kind is not str and value.size:
            if (value != value[0]).any():
                raise UnsupportedError(f"{self.where}: '{full}' differs from layer to layer, which is not implemented")
            value = value[0].item()
        if type(value) is not kind:
            raise GGUFError(f"{self.where}: metadata '{full}' must be {_NOUNS[kind]}, not {show(repr(value))}")
        if isinstance(value, float) and not math.isfinite(value):
            raise GGUFError(f"{self.where}: metadata '{full}' is {value}")
        return value

    def _require_neutral(self, full: str, allowed: tuple[Any, ...]) -> None:
        value = self.metadata[full]
        items = value.tolist() if isinstance(value, np.ndarray) else [value]
        if any(item not in allowed for item in items):
            raise UnsupportedError(
                f"{self.where}: metadata '{full}' = {show(str(value))} is not implemented for '{self.prefix}'; "
                f"supported: absent or {' or '.join(str(a) for a in allowed)}"
            )
