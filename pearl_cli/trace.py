"""Recorded routing: which experts each layer chose for each token, as route_trace v1 CSV.

Preamble lines `# key=value ...` (model, arch, n_layer, n_expert, n_expert_used; one `# layer= expert_bytes=
dense_bytes=` a layer), a header, then one row per routed expert: turn, phase (0 prefill, 1 decode), step (context
position), layer, slot (router rank), expert, weight, residency, expert_bytes. Rows come in any order; further
columns are kept out. The format is that of the public traces of BigMoeOnEdge.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import numpy as np

from models.errors import FileError

COLUMNS = ("turn", "phase", "step", "layer", "slot", "expert", "weight", "residency", "expert_bytes")
PREFILL, DECODE = 0, 1


@dataclass(frozen=True, slots=True)
class Event:
    """What one layer chose in one pass: ids in token order and rank order, repeats kept.

    A prefill is one pass, a decode step is one; `step` is the context position, of the first token for a prefill.
    """

    phase: int
    layer: int
    expert_ids: np.ndarray
    turn: int = 0
    step: int = 0


@dataclass(frozen=True, slots=True)
class RouteTrace:
    """rows: int64 [N, 6] = turn, phase, step, layer, slot, expert, sorted in that order; weights float32 [N];

    expert_bytes int64 [L].
    """

    model: str
    arch: str
    num_layers: int
    num_experts: int
    num_experts_per_tok: int
    expert_bytes: np.ndarray
    rows: np.ndarray
    weights: np.ndarray

    @property
    def total_expert_bytes(self) -> int:
        return int(self.expert_bytes.sum()) * self.num_experts

    @property
    def token_cycle_bytes(self) -> int:
        """Expert bytes that one token uses over all layers."""
        return int(self.expert_bytes.sum()) * self.num_experts_per_tok

    def use_counts(self) -> np.ndarray:
        """int64 [L, E]: how often each expert was chosen."""
        counts = np.zeros((self.num_layers, self.num_experts), np.int64)
        np.add.at(counts, (self.rows[:, 3], self.rows[:, 5]), 1)
        return counts

    def events(self, token_by_token: bool = False) -> Iterator[Event]:
        """Events in order of computation: passes in order, layers in order within a pass.

        With `token_by_token` each prompt token is a pass.
        """
        turn, phase, step, layer = (self.rows[:, i] for i in range(4))
        of_pass = step if token_by_token else np.where(phase == PREFILL, 0, step)
        order = np.lexsort((self.rows[:, 4], step, layer, of_pass, phase, turn))
        keys = np.stack([turn, phase, of_pass, layer], axis=1)[order]
        starts = np.flatnonzero(np.append(True, (keys[1:] != keys[:-1]).any(axis=1)))
        experts = self.rows[order, 5]
        for start, ids in zip(starts, np.split(experts, starts[1:]), strict=True):
            row_turn, row_phase, row_step, row_layer = (int(value) for value in keys[start])
            yield Event(row_phase, row_layer, ids, row_turn, row_step)


def read_trace(path: Path) -> RouteTrace:
    """Read a route_trace v1 file. Raises FileError naming the line that is wrong."""
    try:
        text = path.open(encoding="utf-8", newline="")
    except OSError as error:
        raise FileError(f"{path}: {error.strerror}") from error
    try:
        with text as lines:
            if lines.readline().strip() != "# route_trace v1":
                raise FileError(f"{path}: not a routing trace; its first line must be '# route_trace v1'")
            about, layer_bytes, header = _read_preamble(path, lines)
            rows, weights = _read_rows(path, lines, header)
    except UnicodeDecodeError:
        raise FileError(f"{path}: not a routing trace; it is not text") from None
    num_layers = len(layer_bytes)
    layers_match = about.get("n_layer", str(num_layers)) == str(num_layers)
    if not rows.size or not layers_match or sorted(layer_bytes) != list(range(num_layers)):
        fault = "no rows" if not rows.size else "the preamble does not give expert_bytes of every layer"
        raise FileError(f"{path}: {fault}; record it again (pearl trace)")
    num_experts = int(about["n_expert"])
    if rows.min() < 0 or rows[:, 3].max() >= num_layers or rows[:, 5].max() >= num_experts:
        raise FileError(f"{path}: a row names a layer or expert that the preamble does not have")
    order = np.lexsort(tuple(rows[:, i] for i in (4, 3, 2, 1, 0)))
    return RouteTrace(
        model=about.get("model", ""),
        arch=about.get("arch", ""),
        num_layers=num_layers,
        num_experts=num_experts,
        num_experts_per_tok=int(about["n_expert_used"]),
        expert_bytes=np.array([layer_bytes[i] for i in range(num_layers)], np.int64),
        rows=rows[order],
        weights=weights[order],
    )


def _read_preamble(path: Path, lines: TextIO) -> tuple[dict[str, str], dict[int, int], list[str]]:
    about: dict[str, str] = {}
    layer_bytes: dict[int, int] = {}
    for line in lines:
        if not line.startswith("#"):
            missing = [key for key in ("n_expert", "n_expert_used") if not about.get(key, "").isdecimal()]
            header = line.strip().split(",")
            if missing or header[: len(COLUMNS)] != list(COLUMNS):
                what = f"no {missing[0]}= in the preamble" if missing else f"the header must begin {','.join(COLUMNS)}"
                raise FileError(f"{path}: {what}")
            return about, layer_bytes, header
        pairs = dict(word.split("=", 1) for word in line[1:].split() if "=" in word)
        if "layer" in pairs and "expert_bytes" in pairs:
            if not (pairs["layer"].isdecimal() and pairs["expert_bytes"].isdecimal()):
                raise FileError(f"{path}: not whole numbers: {line.strip()[:80]}")
            layer_bytes[int(pairs["layer"])] = int(pairs["expert_bytes"])
        else:
            about.update(pairs)
    raise FileError(f"{path}: the trace ends before its header line; record it again (pearl trace)")


def _read_rows(path: Path, lines: TextIO, header: list[str]) -> tuple[np.ndarray, np.ndarray]:
    text = lines.readlines()
    if not text:
        return np.zeros((0, 6), np.int64), np.zeros(0, np.float32)
    try:
        table = np.loadtxt(text, np.float64, delimiter=",", usecols=range(7), ndmin=2, comments=None)
    except ValueError:
        raise FileError(_first_bad_row(path, text)) from None
    if not (np.abs(table[:, :6]) < 2**53).all():  # NaN fails too
        raise FileError(f"{path}: a row holds a number that is not finite or too large")
    return table[:, :6].astype(np.int64), table[:, 6].astype(np.float32)


def _first_bad_row(path: Path, text: list[str]) -> str:
    for number, row in enumerate(csv.reader(text), 1):
        try:
            [int(value) for value in row[:6]]
            float(row[6])
        except (ValueError, IndexError):
            return f"{path}: row {number} after the header is not a route_trace row: {','.join(row)[:80]}"
    return f"{path}: the rows are not those of a route_trace"


class TraceWriter:
    """Writes a trace row by row; `expert_bytes` and `dense_bytes` are bytes per layer."""

    def __init__(
        self,
        out: TextIO,
        model: str,
        arch: str,
        num_experts: int,
        num_experts_per_tok: int,
        expert_bytes: list[int],
        dense_bytes: list[int],
    ) -> None:
        self._out = out
        self._expert_bytes = expert_bytes
        out.write(
            f"# route_trace v1\n# model={model} arch={arch} n_layer={len(expert_bytes)} "
            f"n_expert={num_experts} n_expert_used={num_experts_per_tok}\n"
        )
        for layer, (expert, dense) in enumerate(zip(expert_bytes, dense_bytes, strict=True)):
            out.write(f"# layer={layer} expert_bytes={expert} dense_bytes={dense}\n")
        out.write(",".join(COLUMNS) + "\n")

    def write(
        self,
        turn: int,
        phase: int,
        step: int,
        layer: int,
        topk_ids: np.ndarray,
        topk_weights: np.ndarray,
        hit: np.ndarray | None = None,
    ) -> None:
        """One token of one layer: ids [K] in rank order; `hit` bool [K], absent when everything was in memory."""
        for slot, (expert, weight) in enumerate(zip(topk_ids.tolist(), topk_weights.tolist(), strict=True)):
            resident = 1 if hit is None or hit[slot] else 0
            n_bytes = 0 if resident else self._expert_bytes[layer]
            self._out.write(f"{turn},{phase},{step},{layer},{slot},{expert},{weight:.6g},{resident},{n_bytes}\n")
