"""The expert layers of a call: gate, up and their joining in one parallel region over all listed groups, down in
another, then the weighted sum.

Weights are read where the slot table says they lie now, as GGUF blocks, and types may differ from expert to expert. A
pair's result depends on its own expert and token alone, so computing a layer's groups at once, or one by one as their
bytes land, gives the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit

from kernels.backend import Activations, ExpertGroups, ExpertTable
from kernels.cpu.dequant_path import dots_dequantized
from kernels.cpu.expert_rows import down_rows, gate_up_rows
from kernels.cpu.expert_token import TokenExperts
from kernels.cpu.gated_units import add_row_address, join_rows, unit_address
from kernels.cpu.linear import records_of
from kernels.cpu.matmul import MIN_TOKENS, TileTable
from kernels.cpu.matmul_experts import down_many, gate_up_many
from kernels.cpu.parallel import num_threads
from kernels.cpu.quantize_activations import FORM_F32, Form, new_form
from kernels.cpu.recycled import new_rows
from kernels.cpu.type_table import TypeTable
from kernels.quant_types import QuantType


@njit(nogil=True, cache=True)
def _combine(d, pair_of, topk_weights, out):
    for t in range(out.shape[0]):
        row = out[t]
        row[:] = 0.0
        for k in range(pair_of.shape[1]):
            pair, weight = d[pair_of[t, k]], topk_weights[t, k]
            for i in range(row.shape[0]):
                row[i] += weight * pair[i]


def expert_combine(d: np.ndarray, groups: ExpertGroups, topk_weights: np.ndarray) -> np.ndarray:
    """Sum over ranks 0, 1, .. of topk_weights[t, k] * d[pair_of[t, k]]: fresh float32 [T, D]."""
    out = new_rows(topk_weights.shape[0], d.shape[1])
    _combine(d, groups.pair_of, topk_weights, out)
    return out


def _bias_addresses(table: ExpertTable) -> tuple[int, int, int]:
    """Addresses of the table's biases, 0 where it has none. Raises ValueError for arrays that kernels cannot read."""
    if table.biases is None:
        return 0, 0, 0
    widths = {"gate": table.intermediate_size, "up": table.intermediate_size, "down": table.hidden_size}
    for name, width in widths.items():
        array = getattr(table.biases, name)
        if array.shape != (table.gate.size, width) or array.dtype != np.float32 or not array.flags.c_contiguous:
            raise ValueError(f"{name} biases {array.dtype} {array.shape} of {table.gate.size} experts of {width} rows")
    return tuple(int(getattr(table.biases, name).ctypes.data) for name in widths)  # type: ignore[return-value]


def _many(groups: ExpertGroups) -> bool:
    """Whether tiles are decoded: by the mean tokens of an expert over all of the call's groups, so that a listed subset
    takes the same way."""
    return int(groups.token_ids.shape[0]) >= MIN_TOKENS * int(groups.expert_ids.shape[0])


@dataclass(frozen=True, slots=True)
class TablePlan:
    """What one slot table needs: forms of x and of h, whether every expert has direct kernels, the function that joins
    gate and up, and addresses of the gate, up and down biases (0: none).
    """

    table: ExpertTable
    x_forms: tuple[int, ...]
    h_forms: tuple[int, ...]
    direct: bool
    unit: int
    biases: tuple[int, int, int]


class Experts:
    """gate_up and down over `types` and `tiles`; keeps a plan for each slot table and the workspace of a call."""

    def __init__(self, types: TypeTable, tiles: TileTable) -> None:
        self.types, self.tiles = types, tiles
        self._add = add_row_address(types.target)
        self._token = TokenExperts(types, self._add)
        self._plans: dict[int, TablePlan] = {}
        self._up = np.empty((0, 0), np.float32)
        self._pairs = np.arange(0, dtype=np.int32)
        self._records: dict[tuple[int, int], tuple[int, Form]] = {}

    def plan(self, table: ExpertTable) -> TablePlan:
        """The plan of `table`, whose types never change; kept as long as this object."""
        found = self._plans.get(id(table))
        if found is None:
            gate_up = set(table.gate_types.tolist()) | set(table.up_types.tolist())
            down = set(table.down_types.tolist())
            direct = self.types.require(gate_up | down)
            x_forms, h_forms = (tuple(sorted({self.types.forms[i] for i in ids})) for ids in (gate_up, down))
            unit = unit_address(table.unit, table.biases is not None, self.types.target)
            found = self._plans[id(table)] = TablePlan(table, x_forms, h_forms, direct, unit, _bias_addresses(table))
        return found

    def forget(self, table: ExpertTable) -> None:
        """Drop the plan of `table`."""
        self._plans.pop(id(table), None)
        self._token.forget(table)

    def token(
        self, a: Activations, table: ExpertTable, topk_ids: np.ndarray, topk_weights: np.ndarray
    ) -> np.ndarray | None:
        """The weighted sum of one token's experts, fresh float32 [1, D]; None where a type has no direct kernel."""
        plan = self.plan(table)
        return self._token.run(a, plan, topk_ids, topk_weights) if plan.direct else None

    def gate_up(
        self, a: Activations, table: ExpertTable, groups: ExpertGroups, which: np.ndarray, h: np.ndarray
    ) -> None:
        """h[pair] = unit(gate x, up x) for the pairs of the listed groups; h float32 [P, F] is written there only."""
        plan, x = self.plan(table), a.x
        if h.shape[1] != table.intermediate_size or x.shape[1] != table.hidden_size:
            raise ValueError(
                f"experts of {table.hidden_size} x {table.intermediate_size} from {x.shape} into {h.shape}"
            )
        records = records_of(a, plan.x_forms, self.types)
        if self._up.shape[0] < h.shape[0] or self._up.shape[1] != h.shape[1]:
            self._up = np.empty(h.shape, np.float32)
        if _many(groups):
            x_records = (x.ctypes.data, 4 * x.shape[1], *records)
            unit = (plan.unit, plan.biases[:2])
            gate_up_many(table, groups, which, x_records, h, self._up, *unit, self.tiles, num_threads())
        else:
            matrices, types = (table.gate, table.up), (table.gate_types, table.up_types)
            ids = (groups.expert_ids, groups.offsets, groups.token_ids)
            rows = self.types.rows
            call = (rows, matrices, types, ids, which, x, tuple(records), h, self._up)
            gate_up_rows(*call, plan.unit, plan.biases[:2], num_threads())
        if not plan.direct:
            self._gate_up_dequantized(x, table, groups, which, h)

    def down(self, h: np.ndarray, table: ExpertTable, groups: ExpertGroups, which: np.ndarray, d: np.ndarray) -> None:
        """d[pair] = down h[pair] + bias for the pairs of the listed groups; d float32 [P, D] is written there only."""
        plan = self.plan(table)
        if h.shape[1] != table.intermediate_size or d.shape[1] != table.hidden_size:
            raise ValueError(
                f"experts of {table.hidden_size} x {table.intermediate_size} from {h.shape} into {d.shape}"
            )
        records, quantizers = [0, 0, 0, 0], [0, 0]
        for form in plan.h_forms:
            if form != FORM_F32:
                record = self._record(form, *h.shape)
                records[2 * form - 2], records[2 * form - 1] = record.address, record.stride
                quantizers[form - 1] = self.types.quantizers[form]
        if self._pairs.shape[0] < h.shape[0]:
            self._pairs = np.arange(h.shape[0], dtype=np.int32)
        if _many(groups):
            h_records = (h.ctypes.data, 4 * h.shape[1], *records)
            down = (table, groups, which, h_records, (0, *quantizers), d, self._add, plan.biases[2])
            down_many(*down, self.tiles, num_threads())
        else:
            ids = (groups.expert_ids, groups.offsets, groups.token_ids)
            call = (self.types.rows, table.down, table.down_types, ids, which, h, tuple(records), tuple(quantizers))
            down_rows(*call, d, self._pairs, self._add, plan.biases[2], num_threads())
        if not plan.direct:
            self._down_dequantized(h, table, groups, which, d)

    def _record(self, form: int, n_pairs: int, width: int) -> Form:
        rows, record = self._records.get((form, width), (0, None))
        if record is None or rows < n_pairs:
            record = new_form(form, n_pairs, width)
            self._records[form, width] = (n_pairs, record)
        return record

    def _is_direct(self, *quant_types: int) -> bool:
        return all(self.types.rows[t, 0] for t in quant_types)

    def _gate_up_dequantized(
        self, x: np.ndarray, table: ExpertTable, groups: ExpertGroups, which: np.ndarray, h: np.ndarray
    ) -> None:
        """The listed groups of which gate or up has no direct kernel."""
        for g in which.tolist():
            e, begin, end = int(groups.expert_ids[g]), int(groups.offsets[g]), int(groups.offsets[g + 1])
            gate_type, up_type = int(table.gate_types[e]), int(table.up_types[e])
            if self._is_direct(gate_type, up_type) or begin == end:
                continue
            rows, width = x[groups.token_ids[begin:end]], table.intermediate_size
            up = self._up[begin:end]
            dots_dequantized(int(table.gate[e]), QuantType(gate_type), width, rows, h[begin:end], self.types)
            dots_dequantized(int(table.up[e]), QuantType(up_type), width, rows, up, self.types)
            if table.biases is not None:
                h[begin:end] += table.biases.gate[e]
                up += table.biases.up[e]
            join_rows(unit_address(table.unit, False, self.types.target), h[begin:end], up)

    def _down_dequantized(
        self, h: np.ndarray, table: ExpertTable, groups: ExpertGroups, which: np.ndarray, d: np.ndarray
    ) -> None:
        for g in which.tolist():
            e, begin, end = int(groups.expert_ids[g]), int(groups.offsets[g]), int(groups.offsets[g + 1])
            if not self._is_direct(int(table.down_types[e])) and begin < end:
                quant_type, n_rows = QuantType(int(table.down_types[e])), table.hidden_size
                dots_dequantized(int(table.down[e]), quant_type, n_rows, h[begin:end], d[begin:end], self.types)
                if table.biases is not None:
                    d[begin:end] += table.biases.down[e]
