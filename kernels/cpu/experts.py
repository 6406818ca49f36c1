"""The expert layers of a call: gate, up and silu in one parallel region over all listed groups, down in another, then the weighted sum.

Weights are read where the slot table says they lie now, as GGUF blocks, and types may differ from expert to expert. A pair's result depends
on its own expert and token alone, so computing a layer's groups at once, or one by one as their bytes land, gives the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit, prange

from kernels.backend import Activations, ExpertGroups, ExpertTable
from kernels.cpu.addresses import address
from kernels.cpu.dequant_path import dots_dequantized
from kernels.cpu.float_math import emit_exp
from kernels.cpu.linear import CHUNK_ROWS, records_of
from kernels.cpu.native import address_of
from kernels.cpu.native_call import call_native
from kernels.cpu.parallel import num_threads
from kernels.cpu.quantize_activations import FORM_F32, FORM_Q8_32, FORM_Q8_256, Form, new_form
from kernels.cpu.type_table import TypeTable
from kernels.cpu.vector_ir import F32, Emitter, vec
from kernels.quant_types import QuantType

_LARGEST_EXPONENT = 88.0  # e^88 is the largest power that emit_exp takes


def emit_silu_mul(e: Emitter, gate: object, up: object, n: object) -> None:
    """gate[i] = gate[i] / (1 + e^-gate[i]) * up[i] for n >= 1 float32; 8 lanes, then one by one with the same formula."""
    b = e.b

    def step(lanes: int):
        kind = vec(F32, lanes)

        def body(i, _):
            at = b.mul(i, e.i64(4 * lanes))
            g, u = e.load(b.add(gate, at), kind, 4), e.load(b.add(up, at), kind, 4)
            power = emit_exp(e, e.call("llvm.minimum", kind, [b.fneg(g), e.splat(e.f32(_LARGEST_EXPONENT), lanes)]))
            silu = b.fdiv(g, b.fadd(e.splat(e.f32(1.0), lanes), power))
            e.store(b.fmul(silu, u), b.add(gate, at), 4)
            return []

        return body

    n_vectors = b.lshr(n, e.i64(3))
    with b.if_then(b.icmp_signed(">", n_vectors, e.i64(0))):
        e.loop(n_vectors, [], step(8))
    first = b.shl(n_vectors, e.i64(3))
    with b.if_then(b.icmp_signed("<", first, n)):
        e.loop(n, [], step(1), first=first)


@njit(nogil=True, cache=True)
def _rows_of_pairs(kernel, matrix, first, last, n_cols, n_pairs, x, x_stride, tokens, out, out_stride):
    """Rows first..last-1 of one expert matrix for its n_pairs pairs. Pair i reads record tokens[i] (or record i where `tokens` is empty)."""
    rows, block, block_bytes, form = kernel
    n_bytes = n_cols // block * block_bytes
    step = last - first if n_pairs == 1 else CHUNK_ROWS
    for r in range(first, last, step):
        n = min(step, last - r)
        for i in range(n_pairs):
            record = tokens[i] if tokens.shape[0] else i
            call_native(rows, matrix + r * n_bytes, n_bytes, n, n_cols, x[form] + record * x_stride[form], out + i * out_stride + 4 * r)


@njit(nogil=True, cache=True)
def _gate_up_part(kernels, gate, up, gate_types, up_types, ids, offsets, tokens, which, n_cols, x, x_stride, h, u, width, low, high, silu):
    """Units low..high-1 of the len(which) * width rows of the listed groups."""
    for w in range(low // width, which.shape[0]):
        first, last = max(low - w * width, 0), min(high - w * width, width)
        g = which[w]
        expert, begin = ids[g], offsets[g]
        n_pairs = offsets[g + 1] - begin
        gate_kernel, up_kernel = kernels[gate_types[expert]], kernels[up_types[expert]]
        if first >= last or n_pairs == 0 or gate_kernel[0] == 0 or up_kernel[0] == 0:
            continue
        pair_tokens = tokens[begin : begin + n_pairs]
        at = 4 * begin * width
        _rows_of_pairs(gate_kernel, gate[expert], first, last, n_cols, n_pairs, x, x_stride, pair_tokens, h + at, 4 * width)
        _rows_of_pairs(up_kernel, up[expert], first, last, n_cols, n_pairs, x, x_stride, pair_tokens, u + at, 4 * width)
        for i in range(n_pairs):
            pair = 4 * (i * width + first)
            call_native(silu, h + at + pair, u + at + pair, last - first)


@njit(nogil=True, cache=True, parallel=True)
def _gate_up(
    kernels, gate, up, gate_types, up_types, ids, offsets, tokens, which, x_rows, q32, q32_stride, q256, q256_stride,
    h, u, silu, n_parts,
):
    n_cols, width = x_rows.shape[1], h.shape[1]
    n = which.shape[0] * width
    for part in prange(n_parts):
        x, x_stride = (address(x_rows), q32, q256), (4 * n_cols, q32_stride, q256_stride)
        low, high = part * n // n_parts, (part + 1) * n // n_parts
        _gate_up_part(
            kernels, gate, up, gate_types, up_types, ids, offsets, tokens, which, n_cols, x, x_stride, address(h), address(u),
            width, low, high, silu,
        )


@njit(nogil=True, cache=True)
def _down_part(kernels, down, down_types, ids, offsets, which, n_cols, x, x_stride, d, width, low, high):
    no_tokens = ids[:0]
    for w in range(low // width, which.shape[0]):
        first, last = max(low - w * width, 0), min(high - w * width, width)
        g = which[w]
        begin = offsets[g]
        n_pairs = offsets[g + 1] - begin
        kernel = kernels[down_types[ids[g]]]
        if first >= last or n_pairs == 0 or kernel[0] == 0:
            continue
        form = kernel[3]
        h = (x[0] + begin * x_stride[0], x[1] + begin * x_stride[1], x[2] + begin * x_stride[2])
        _rows_of_pairs(kernel, down[ids[g]], first, last, n_cols, n_pairs, h, x_stride, no_tokens, d + 4 * begin * width, 4 * width)


@njit(nogil=True, cache=True)
def _quantize_part(offsets, which, n_cols, x, x_stride, quantize_32, quantize_256, part, n_parts):
    """Every n_parts-th of the listed pairs in the forms whose function address is not 0."""
    for w in range(which.shape[0]):
        for i in range(offsets[which[w]], offsets[which[w] + 1]):
            if i % n_parts == part:
                if quantize_32:
                    call_native(quantize_32, x[0] + i * x_stride[0], x[1] + i * x_stride[1], n_cols)
                if quantize_256:
                    call_native(quantize_256, x[0] + i * x_stride[0], x[2] + i * x_stride[2], n_cols)


@njit(nogil=True, cache=True, parallel=True)
def _down(kernels, down, down_types, ids, offsets, which, h, q32, q32_stride, q256, q256_stride, d, quantize_32, quantize_256, n_parts):
    n_cols, width = h.shape[1], d.shape[1]
    if quantize_32 or quantize_256:
        for part in prange(n_parts):
            x, x_stride = (address(h), q32, q256), (4 * n_cols, q32_stride, q256_stride)
            _quantize_part(offsets, which, n_cols, x, x_stride, quantize_32, quantize_256, part, n_parts)
    n = which.shape[0] * width
    for part in prange(n_parts):
        x, x_stride = (address(h), q32, q256), (4 * n_cols, q32_stride, q256_stride)
        low, high = part * n // n_parts, (part + 1) * n // n_parts
        _down_part(kernels, down, down_types, ids, offsets, which, n_cols, x, x_stride, address(d), width, low, high)


@njit(nogil=True, cache=True)
def _combine(d, pair_of, topk_weights, out):
    for t in range(out.shape[0]):
        row = out[t]
        row[:] = 0.0
        for k in range(pair_of.shape[1]):
            pair, weight = d[pair_of[t, k]], topk_weights[t, k]
            for i in range(row.shape[0]):
                row[i] += weight * pair[i]


@dataclass(frozen=True, slots=True)
class TablePlan:
    """What one slot table's types need: forms of x and of h, and whether every expert has direct kernels."""

    table: ExpertTable
    x_forms: tuple[int, ...]
    h_forms: tuple[int, ...]
    direct: bool


class Experts:
    """The three expert ops over `types`; keeps a plan for each slot table and the workspace between gate_up and down."""

    def __init__(self, types: TypeTable) -> None:
        self.types = types
        self._silu = address_of("silu_mul", 3, emit_silu_mul, types.target)
        self._plans: dict[int, TablePlan] = {}
        self._up = np.empty((0, 0), np.float32)
        self._records: dict[tuple[int, int], tuple[int, Form]] = {}

    def plan(self, table: ExpertTable) -> TablePlan:
        found = self._plans.get(id(table))
        if found is None or found.table is not table:
            gate_up = set(table.gate_types.tolist()) | set(table.up_types.tolist())
            down = set(table.down_types.tolist())
            direct = self.types.require(gate_up | down)
            forms = [tuple(sorted({int(self.types.rows[i, 3]) for i in ids})) for ids in (gate_up, down)]
            found = self._plans[id(table)] = TablePlan(table, forms[0], forms[1], direct)
        return found

    def gate_up(self, a: Activations, table: ExpertTable, groups: ExpertGroups, which: np.ndarray, h: np.ndarray) -> None:
        """h[pair] = silu(gate x) * up x for the pairs of the listed groups; h float32 [P, F] is written there only."""
        plan = self.plan(table)
        if h.shape[1] != table.intermediate_size or a.x.shape[1] != table.hidden_size:
            raise ValueError(f"experts of {table.hidden_size} x {table.intermediate_size} from {a.x.shape} into {h.shape}")
        records = records_of(a, plan.x_forms, self.types)
        if self._up.shape[0] < h.shape[0] or self._up.shape[1] != h.shape[1]:
            self._up = np.empty(h.shape, np.float32)
        _gate_up(
            self.types.rows, table.gate, table.up, table.gate_types, table.up_types, groups.expert_ids, groups.offsets, groups.token_ids,
            which, a.x, *records, h, self._up, self._silu, num_threads(),
        )
        if not plan.direct:
            self._gate_up_dequantized(a.x, table, groups, which, h)

    def down(self, h: np.ndarray, table: ExpertTable, groups: ExpertGroups, which: np.ndarray, d: np.ndarray) -> None:
        """d[pair] = down h[pair] for the pairs of the listed groups; d float32 [P, D] is written there only."""
        plan = self.plan(table)
        if h.shape[1] != table.intermediate_size or d.shape[1] != table.hidden_size:
            raise ValueError(f"experts of {table.hidden_size} x {table.intermediate_size} from {h.shape} into {d.shape}")
        records, quantizers = [0, 0, 0, 0], [0, 0, 0]
        for form in plan.h_forms:
            if form != FORM_F32:
                record = self._record(form, *h.shape)
                records[2 * form - 2], records[2 * form - 1] = record.address, record.stride
                quantizers[form] = self.types.quantizers[form]
        _down(
            self.types.rows, table.down, table.down_types, groups.expert_ids, groups.offsets, which, h, *records, d,
            quantizers[FORM_Q8_32], quantizers[FORM_Q8_256], num_threads(),
        )
        if not plan.direct:
            self._down_dequantized(h, table, groups, which, d)

    def silu_mul(self, gate_up: np.ndarray, width: int) -> np.ndarray:
        """silu(gate) * up for float32 gate_up [T, 2 * width]: fresh float32 [T, width]."""
        out = np.ascontiguousarray(gate_up[:, :width])
        _silu_mul(self._silu, out, np.ascontiguousarray(gate_up[:, width:]))
        return out

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
            rows = x[groups.token_ids[begin:end]]
            up = self._up[begin:end]
            dots_dequantized(int(table.gate[e]), QuantType(gate_type), table.intermediate_size, rows, h[begin:end], self.types)
            dots_dequantized(int(table.up[e]), QuantType(up_type), table.intermediate_size, rows, up, self.types)
            _silu_mul(self._silu, h[begin:end], up)

    def _down_dequantized(self, h: np.ndarray, table: ExpertTable, groups: ExpertGroups, which: np.ndarray, d: np.ndarray) -> None:
        for g in which.tolist():
            e, begin, end = int(groups.expert_ids[g]), int(groups.offsets[g]), int(groups.offsets[g + 1])
            if not self._is_direct(int(table.down_types[e])) and begin < end:
                quant_type = QuantType(int(table.down_types[e]))
                dots_dequantized(int(table.down[e]), quant_type, table.hidden_size, h[begin:end], d[begin:end], self.types)


@njit(nogil=True, cache=True)
def _silu_mul(function, gate, up):
    call_native(function, address(gate), address(up), gate.size)


def expert_combine(d: np.ndarray, groups: ExpertGroups, topk_weights: np.ndarray) -> np.ndarray:
    """Sum over ranks 0, 1, .. of topk_weights[t, k] * d[pair_of[t, k]]: fresh float32 [T, D]."""
    out = np.empty((topk_weights.shape[0], d.shape[1]), np.float32)
    _combine(d, groups.pair_of, topk_weights, out)
    return out
