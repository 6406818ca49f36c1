"""The flags `--cpu-mask`, `--cpu-range` and `--cpu-strict`, spelled as in llama.cpp. What they do is in cpu_cores."""

from __future__ import annotations

import re
from typing import Any

import click

MOST_CORES = 1 << 16  # far above any machine: a range of more would fill the memory before a core is found missing


class CoreMask(click.ParamType[frozenset[int]]):
    """`0xf0` or `f0`: bit i stands for core i."""

    name = "HEX"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> frozenset[int]:
        if isinstance(value, frozenset):
            return value
        match = re.fullmatch(r"(?:0[xX])?([0-9a-fA-F]+)", str(value))
        bits = int(match[1], 16) if match else 0
        if not 0 < bits < 1 << MOST_CORES:
            self.fail(f"'{value}' names no core; write a hexadecimal mask, 0xf for cores 0 to 3", param, ctx)
        return frozenset(core for core in range(bits.bit_length()) if bits >> core & 1)


class CoreRange(click.ParamType[frozenset[int]]):
    """`4-7`: these cores and those between."""

    name = "LO-HI"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> frozenset[int]:
        if isinstance(value, frozenset):
            return value
        match = re.fullmatch(r"([0-9]{1,9})-([0-9]{1,9})", str(value))
        if match is None or not int(match[1]) <= int(match[2]) < MOST_CORES:
            self.fail(f"'{value}' is no range of cores; write 0-3", param, ctx)
        return frozenset(range(int(match[1]), int(match[2]) + 1))


CORE_FLAGS = [
    click.option("-C", "--cpu-mask", type=CoreMask(), help="Cores to run on, as a mask; with --cpu-range, both."),
    click.option("-Cr", "--cpu-range", type=CoreRange(), help="Cores to run on."),
    click.option(
        "--cpu-strict",
        type=click.Choice(["0", "1"]),
        default="0",
        show_default=True,
        help="1: each compute thread on a core of its own, physical cores first.",
    ),
]
