"""Compiled loops of the expert layers for one token or a few: row dots straight on the blocks of the listed groups.

Shared arguments: `kernels` TypeTable.rows; `groups` (expert_ids, offsets, token_ids) of ExpertGroups; `which` the
listed groups; `records` (q8_32 address, stride, q8_256 address, stride), zeros where a form is not read; biases are
addresses of float32 [E, width], 0 where there are none.
"""

from __future__ import annotations

import numpy as np
from numba import njit, prange

from kernels.cpu.addresses import address
from kernels.cpu.linear import CHUNK_ROWS
from kernels.cpu.native_call import call_native


@njit(nogil=True, cache=True)
def rows_of_pairs(kernel, matrix, first, last, n_cols, x, x_stride, tokens, out, out_stride):
    """Rows first..last-1 of one expert's matrix for its pairs: pair i reads record tokens[i], writes at out + i *
    stride.
    """
    rows, block, block_bytes, form = kernel
    n_bytes = n_cols // block * block_bytes
    step = last - first if tokens.shape[0] == 1 else CHUNK_ROWS
    for r in range(first, last, step):
        n = min(step, last - r)
        for i in range(tokens.shape[0]):
            record = x[form] + tokens[i] * x_stride[form]
            call_native(rows, matrix + r * n_bytes, n_bytes, n, n_cols, record, out + i * out_stride + 4 * r)


@njit(nogil=True, cache=True)
def gate_up_part(kernels, matrices, types, groups, which, n_cols, x, x_stride, h, u, width, unit, biases, low, high):
    """Rows low..high-1 of the len(which) * width rows of the listed groups; h, u: addresses of float32 [P, width]."""
    expert_ids, offsets, token_ids = groups
    for w in range(low // width, which.shape[0]):
        first, last = max(low - w * width, 0), min(high - w * width, width)
        begin, end = offsets[which[w]], offsets[which[w] + 1]
        expert = expert_ids[which[w]]
        gate, up = kernels[types[0][expert]], kernels[types[1][expert]]
        if first >= last or begin == end or gate[0] == 0 or up[0] == 0:
            continue
        tokens, stride, at = token_ids[begin:end], 4 * width, 4 * width * begin
        rows_of_pairs(gate, matrices[0][expert], first, last, n_cols, x, x_stride, tokens, h + at, stride)
        rows_of_pairs(up, matrices[1][expert], first, last, n_cols, x, x_stride, tokens, u + at, stride)
        bias = 4 * (np.int64(expert) * width + first)
        for i in range(end - begin):
            pair = at + i * stride + 4 * first
            call_native(unit, h + pair, u + pair, last - first, biases[0] + bias, biases[1] + bias)


@njit(nogil=True, cache=True, parallel=True)
def gate_up_rows(kernels, matrices, types, groups, which, x_rows, records, h, u, unit, biases, n_parts):
    """h[pair] = unit(gate x, up x) for the listed groups. matrices, types: (gate, up) of the slot table; x_rows
    float32 [T, D]; u: workspace like h [P, F]; unit: a function of gated_units; biases: (gate, up)."""
    n_cols, width = x_rows.shape[1], h.shape[1]
    n = which.shape[0] * width
    for part in prange(n_parts):
        x, x_stride = (address(x_rows), records[0], records[2]), (4 * n_cols, records[1], records[3])
        low, high = part * n // n_parts, (part + 1) * n // n_parts
        gate_up_part(
            kernels, matrices, types, groups, which, n_cols, x, x_stride, address(h), address(u), width, unit, biases,
            low, high,
        )  # fmt: skip


@njit(nogil=True, cache=True)
def _down_part(kernels, matrices, types, groups, which, n_cols, x, x_stride, d, width, add, bias, low, high, pairs):
    expert_ids, offsets, _ = groups
    for w in range(low // width, which.shape[0]):
        first, last = max(low - w * width, 0), min(high - w * width, width)
        begin, end = offsets[which[w]], offsets[which[w] + 1]
        expert = expert_ids[which[w]]
        kernel = kernels[types[expert]]
        if first < last and begin < end and kernel[0]:
            out = d + 4 * width * begin
            rows_of_pairs(kernel, matrices[expert], first, last, n_cols, x, x_stride, pairs[begin:end], out, 4 * width)
            if bias:
                addend = bias + 4 * (np.int64(expert) * width + first)
                for i in range(end - begin):
                    call_native(add, out + 4 * (i * width + first), addend, last - first)


@njit(nogil=True, cache=True)
def quantize_part(groups, which, n_cols, x, x_stride, quantizers, part, n_parts):
    """Every n_parts-th of the listed pairs in the forms whose function address is not 0."""
    offsets = groups[1]
    for w in range(which.shape[0]):
        for i in range(offsets[which[w]], offsets[which[w] + 1]):
            if i % n_parts == part:
                if quantizers[0]:
                    call_native(quantizers[0], x[0] + i * x_stride[0], x[1] + i * x_stride[1], n_cols)
                if quantizers[1]:
                    call_native(quantizers[1], x[0] + i * x_stride[0], x[2] + i * x_stride[2], n_cols)


@njit(nogil=True, cache=True, parallel=True)
def down_rows(kernels, matrices, types, groups, which, h, records, quantizers, d, pairs, add, bias, n_parts):
    """d[pair] = down h[pair] + bias for the listed groups. quantizers: addresses for the q8_32 and q8_256 records of
    h, filled here (0: not read); pairs int32: 0, 1, .. at least as many as rows of h; add: address of `add_row`."""
    n_cols, width = h.shape[1], d.shape[1]
    if quantizers[0] or quantizers[1]:
        for part in prange(n_parts):
            x, x_stride = (address(h), records[0], records[2]), (4 * n_cols, records[1], records[3])
            quantize_part(groups, which, n_cols, x, x_stride, quantizers, part, n_parts)
    n = which.shape[0] * width
    for part in prange(n_parts):
        x, x_stride = (address(h), records[0], records[2]), (4 * n_cols, records[1], records[3])
        low, high = part * n // n_parts, (part + 1) * n // n_parts
        _down_part(
            kernels, matrices, types, groups, which, n_cols, x, x_stride, address(d), width, add, bias, low, high, pairs
        )
