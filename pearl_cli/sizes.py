"""Sizes as a user writes them: bytes with a unit, or a share of all expert bytes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import click

_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}


@dataclass(frozen=True, slots=True)
class Size:
    """A number of bytes, or a share of all expert bytes (`percent`), as the user wrote it."""

    n_bytes: int = 0
    percent: float = 0.0

    def of(self, total_bytes: int) -> int:
        """Bytes meant, out of `total_bytes` when a share was given."""
        return int(total_bytes * self.percent / 100) if self.percent else self.n_bytes


def parse_size(text: str, allow_percent: bool = False) -> Size:
    """`2GiB`, `1500MiB`, `2G`, `700000`, `40%`. Units are powers of two, as llama.cpp users expect.

    Raises ValueError.
    """
    match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*(%|([kmgt]?)(i?b)?)\s*", text, re.IGNORECASE)
    if not match:
        raise ValueError(f"'{text}' is not a size; write 2GiB, 1500MiB{' or 40%' if allow_percent else ''}")
    number = float(match[1])
    if match[2] == "%":
        if not allow_percent:
            raise ValueError(f"'{text}': a percentage has no meaning here; write 2GiB or 1500MiB")
        if not 0 < number <= 100:
            raise ValueError(f"'{text}': a share of the experts lies above 0% and up to 100%")
        return Size(percent=number)
    return Size(n_bytes=int(number * _UNITS[(match[3] or "").lower()]))


_LEAST_PLAIN_BYTES = 1024  # a smaller number without a unit was meant in another one


class SizeParam(click.ParamType[Size]):
    """click type for `Size`."""

    name = "size"

    def __init__(self, allow_percent: bool = False, above_zero: bool = False) -> None:
        self.allow_percent = allow_percent
        self.above_zero = above_zero

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Size:
        if isinstance(value, Size):
            return value
        try:
            size = parse_size(str(value), self.allow_percent)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if self.above_zero and size == Size():
            self.fail(f"'{value}' is nothing; write 2GiB, 1500MiB", param, ctx)
        if str(value).strip().isdecimal() and 0 < size.n_bytes < _LEAST_PLAIN_BYTES:
            self.fail(f"'{value}' is {size.n_bytes} bytes; did you mean {size.n_bytes}GiB?", param, ctx)
        return size
