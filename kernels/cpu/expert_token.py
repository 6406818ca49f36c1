"""All experts of one token in one compiled call: gate, up and their joining; the quantised rows; down and the sum.

Bit for bit what `expert_rows` and the sum in rank order give; nobody waits for arrivals here, so a layer costs one
call.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numba import njit, prange

from kernels.backend import Activations, ExpertTable
from kernels.cpu.addresses import address
from kernels.cpu.expert_rows import gate_up_part, quantize_part, rows_of_pairs
from kernels.cpu.float_rows import float_row
from kernels.cpu.linear import records_of
from kernels.cpu.native_call import call_native
from kernels.cpu.parallel import num_threads
from kernels.cpu.quantize_activations import FORM_Q8_32, FORM_Q8_256, new_form
from kernels.cpu.recycled import new_rows
from kernels.cpu.type_table import TypeTable

if TYPE_CHECKING:
    from kernels.cpu.experts import TablePlan

_CALL = np.dtype(
    [
        (name, np.int64)
        for name in (
            "unit", "gate_bias", "up_bias", "add", "down_bias", "h", "u", "d", "q32", "q32_stride", "q256",
            "q256_stride", "quantize_32", "quantize_256",
        )
    ]
)  # fmt: skip
# Of all calls over one slot table: how gate and up are joined, addresses of biases (0: none) and of `add_row`,
# workspace float32 h and u [K, F] and d [K, D], the records of h with their strides, what makes them (0: not read).


@njit(nogil=True, cache=True)
def _down_columns(kernels, down, types, ids, pairs, n_cols, x, x_stride, c, weights, out, first, last):
    """out[first:last] of the weighted sum, through rows first..last-1 of each expert's down matrix."""
    if first >= last:
        return
    row_bytes = 4 * out.shape[1]
    total = out[0]
    total[first:last] = 0.0
    for k in range(ids.shape[0]):
        expert = ids[k]
        own = c.d + k * row_bytes
        kernel = kernels[types[expert]]
        rows_of_pairs(kernel, down[expert], first, last, n_cols, x, x_stride, pairs[k : k + 1], own, row_bytes)
        if c.down_bias:
            call_native(c.add, own + 4 * first, c.down_bias + np.int64(expert) * row_bytes + 4 * first, last - first)
        weight, part = weights[0, k], float_row(own, out.shape[1])
        for i in range(first, last):
            total[i] += weight * part[i]


@njit(nogil=True, cache=True, parallel=True)
def experts_of_token(
    call, kernels, gate, up, down, types, topk_ids, ranks, zeros, topk_weights, x, q32, q256, width, out, n_parts
):
    """out float32 [1, D] = sum over ranks of topk_weights[0, k] * down(unit(gate x, up x)).

    gate, up, down: addresses by expert; types uint8 [3, E]; topk_ids int32 [1, K]; ranks int32 0..K; zeros int32 [K];
    x float32 [1, D] and its records q32, q256.
    """
    n_cols, hidden, k_experts = x.shape[1], out.shape[1], topk_ids.shape[1]
    for part in prange(n_parts):
        c = call[0]
        groups = (topk_ids[0], ranks, zeros)
        records, strides = (address(x), q32, q256), (0, 0, 0)
        low, high = part * k_experts * width // n_parts, (part + 1) * k_experts * width // n_parts
        gate_up_part(
            kernels, (gate, up), (types[0], types[1]), groups, ranks[:k_experts], n_cols, records, strides, c.h, c.u,
            width, c.unit, (c.gate_bias, c.up_bias), low, high,
        )  # fmt: skip
    for part in prange(n_parts):
        c = call[0]
        records, strides = (c.h, c.q32, c.q256), (4 * width, c.q32_stride, c.q256_stride)
        quantizers = (c.quantize_32, c.quantize_256)
        groups = (topk_ids[0], ranks, zeros)
        quantize_part(groups, ranks[:k_experts], width, records, strides, quantizers, part, n_parts)
    for part in prange(n_parts):
        c = call[0]
        records, strides = (c.h, c.q32, c.q256), (4 * width, c.q32_stride, c.q256_stride)
        first, last = part * hidden // n_parts, (part + 1) * hidden // n_parts
        _down_columns(
            kernels, down, types[2], topk_ids[0], ranks, width, records, strides, c, topk_weights, out, first, last
        )


@dataclass(frozen=True, slots=True)
class TokenCall:
    """The arguments that stay the same from call to call over one table with K experts a token; `owners` keep the
    memory that `call` points at alive."""

    call: np.ndarray
    types: np.ndarray
    ranks: np.ndarray
    zeros: np.ndarray
    owners: tuple[object, ...]


class TokenExperts:
    """Computes one token's experts; keeps a `TokenCall` for each slot table and shares their workspace by size."""

    def __init__(self, types: TypeTable, add: int) -> None:
        """`add`: address of `add_row`."""
        self._types = types
        self._add = add
        self._calls: dict[tuple[int, int], TokenCall] = {}
        self._workspaces: dict[tuple[int, int, int], tuple[np.ndarray, ...]] = {}

    def run(
        self, a: Activations, plan: TablePlan, topk_ids: np.ndarray, topk_weights: np.ndarray
    ) -> np.ndarray:
        """Fresh float32 [1, D] for int32 topk_ids and float32 topk_weights [1, K] over a table whose types all have
        direct kernels. Raises ValueError where `a` is of another width."""
        table, x = plan.table, a.x
        key = (id(table), topk_ids.shape[1])
        found = self._calls.get(key)
        if found is None:
            found = self._calls[key] = self._new_call(plan, topk_ids.shape[1])
        if x.shape[1] != table.hidden_size:
            raise ValueError(f"experts of {table.hidden_size} x {table.intermediate_size} from {x.shape}")
        q32, _, q256, _ = records_of(a, plan.x_forms, self._types)
        out = new_rows(1, table.hidden_size)
        experts_of_token(
            found.call, self._types.rows, table.gate, table.up, table.down, found.types, topk_ids, found.ranks,
            found.zeros, topk_weights, x, q32, q256, table.intermediate_size, out, num_threads(),
        )  # fmt: skip
        return out

    def forget(self, table: ExpertTable) -> None:
        """Drop what is kept for `table`."""
        for key in [key for key in self._calls if key[0] == id(table)]:
            del self._calls[key]

    def _new_call(self, plan: TablePlan, k_experts: int) -> TokenCall:
        table, call = plan.table, np.zeros(1, _CALL)
        width, hidden = table.intermediate_size, table.hidden_size
        size = (k_experts, width, hidden)
        if size not in self._workspaces:
            self._workspaces[size] = tuple(np.empty((k_experts, n), np.float32) for n in (width, width, hidden))
        owners: list[object] = [*self._workspaces[size]]
        call["unit"], call["add"] = plan.unit, self._add
        call["gate_bias"], call["up_bias"], call["down_bias"] = plan.biases
        call["h"], call["u"], call["d"] = (array.ctypes.data for array in self._workspaces[size])
        for form, name in ((FORM_Q8_32, "32"), (FORM_Q8_256, "256")):
            if form in plan.h_forms:
                records = new_form(form, k_experts, width)
                call[f"q{name}"], call[f"q{name}_stride"] = records.address, records.stride
                call[f"quantize_{name}"] = self._types.quantizers[form]
                owners.append(records)
        types = np.stack([table.gate_types, table.up_types, table.down_types])
        ranks = np.arange(k_experts + 1, dtype=np.int32)
        return TokenCall(call, types, ranks, np.zeros(k_experts, np.int32), tuple(owners))
