"""Grouped experts for many tokens: every thread takes the same share of each expert's rows and all of its tokens.

An expert's tile is decoded once and used for the tokens of its group, so work is balanced however unevenly tokens fall
on experts. For one token or a few, experts.py reads the blocks directly. A pair's result depends on its expert and
token only.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numba import njit, prange

from kernels.backend import ExpertGroups, ExpertTable
from kernels.cpu.matmul import FORM, TILE, TileTable, row_addresses, tile_range, tile_rows
from kernels.cpu.native_call import call_native


@njit(nogil=True, cache=True)
def _join_rows(unit, h, u, begin, end, width, first, stop, gate_bias, up_bias):
    """h = unit(h, u) for columns first..stop-1 of pair rows begin..end-1; h, u: addresses of float32 [P, width];
    biases: addresses of the expert's rows."""
    for pair in range(begin, end):
        at = 4 * (pair * width + first)
        call_native(unit, h + at, u + at, stop - first, gate_bias + 4 * first, up_bias + 4 * first)


@njit(nogil=True, cache=True, parallel=True)
def _gate_up(
    functions, matrices, types, ids, offsets, which, lanes, n_cols, x_rows, h_rows, u_rows, width, unit, gate_bias,
    up_bias, scratch, scratch_bytes, n_parts,
):  # fmt: skip
    """matrices int64 [2, E] addresses, types [2, E]: gate, up; x_rows int64 [3, P] by FORM_*; h_rows, u_rows [P]."""
    for part in prange(n_parts):
        first, stop = tile_range(width, lanes, part, n_parts)
        place = scratch + part * scratch_bytes
        for w in range(which.shape[0]):
            begin, end, expert = offsets[which[w]], offsets[which[w] + 1], ids[which[w]]
            gate, up = functions[types[0, expert]], functions[types[1, expert]]
            if begin == end or first >= stop or gate[TILE] == 0 or up[TILE] == 0:
                continue
            pairs = 8 * np.int64(begin)
            gate_x, up_x = x_rows[gate[FORM]].ctypes.data + pairs, x_rows[up[FORM]].ctypes.data + pairs
            n, h, u = end - begin, h_rows.ctypes.data + pairs, u_rows.ctypes.data + pairs
            tile_rows(gate, matrices[0, expert], first, stop, n_cols, lanes, n, gate_x, h, 0, place)
            tile_rows(up, matrices[1, expert], first, stop, n_cols, lanes, n, up_x, u, 0, place)
            bias = 4 * np.int64(expert) * width
            places = gate_bias + bias, up_bias + bias
            _join_rows(unit, h_rows[0], u_rows[0], begin, end, width, first, stop, places[0], places[1])


@njit(nogil=True, cache=True, parallel=True)
def _down(
    functions, down, types, ids, offsets, which, lanes, n_cols, x_rows, d_rows, width, quantize_32, quantize_256,
    add, bias, scratch, scratch_bytes, n_parts,
):  # fmt: skip
    """Quantise the listed pairs of h, then multiply; x_rows int64 [3, P]: h and its records by FORM_*."""
    for part in prange(n_parts):
        for w in range(which.shape[0]):
            for pair in range(offsets[which[w]], offsets[which[w] + 1]):
                if pair % n_parts == part:
                    if quantize_32:
                        call_native(quantize_32, x_rows[0, pair], x_rows[1, pair], n_cols)
                    if quantize_256:
                        call_native(quantize_256, x_rows[0, pair], x_rows[2, pair], n_cols)
    for part in prange(n_parts):
        first, stop = tile_range(width, lanes, part, n_parts)
        for w in range(which.shape[0]):
            begin, end, expert = offsets[which[w]], offsets[which[w] + 1], ids[which[w]]
            kernel = functions[types[expert]]
            if begin == end or first >= stop or kernel[TILE] == 0:
                continue
            pairs = 8 * np.int64(begin)
            x, d = x_rows[kernel[FORM]].ctypes.data + pairs, d_rows.ctypes.data + pairs
            place = scratch + part * scratch_bytes
            tile_rows(kernel, down[expert], first, stop, n_cols, lanes, end - begin, x, d, 0, place)
            if bias:
                addend = bias + 4 * (np.int64(expert) * width + first)
                for pair in range(begin, end):
                    call_native(add, d_rows[pair] + 4 * first, addend, stop - first)


def gate_up_many(
    table: ExpertTable,
    groups: ExpertGroups,
    which: np.ndarray,
    records: Sequence[int],
    h: np.ndarray,
    u: np.ndarray,
    unit: int,
    biases: tuple[int, int],
    tiles: TileTable,
    n_parts: int,
) -> None:
    """h[pair] = unit(gate x, up x) for the pairs of the groups in `which`; h float32 [P, F] is written there only.

    records: (address, stride) of the tokens' activations by FORM_*, flat: f32, q8_32, q8_256. u: workspace like h.
    unit: address of a function of gated_units; biases: addresses of float32 [E, F] for gate and up, or 0. Groups whose
    gate or up has no tile kernel are left alone.
    """
    types = np.stack([table.gate_types, table.up_types])
    used = set(np.unique(types).tolist())
    tiles.require(used)
    x_rows = np.stack([row_addresses(records[2 * f], records[2 * f + 1], groups.token_ids) for f in range(3)])
    h_rows, u_rows = (row_addresses(a.__array_interface__["data"][0], a.strides[0], h.shape[0]) for a in (h, u))
    scratch = tiles.scratch(n_parts, table.hidden_size, used)
    _gate_up(
        tiles.functions, np.stack([table.gate, table.up]), types, groups.expert_ids, groups.offsets, which, tiles.lanes,
        table.hidden_size, x_rows, h_rows, u_rows, table.intermediate_size, unit, *biases, *scratch, n_parts,
    )  # fmt: skip


def down_many(
    table: ExpertTable,
    groups: ExpertGroups,
    which: np.ndarray,
    records: Sequence[int],
    quantizers: Sequence[int],
    d: np.ndarray,
    add: int,
    bias: int,
    tiles: TileTable,
    n_parts: int,
) -> None:
    """d[pair] = down h[pair] + bias for the pairs of the groups in `which`; d float32 [P, D] is written there only.

    add: address of `add_row`; bias: address of float32 [E, D], or 0.
    records: (address, stride) of h itself (f32), and of its q8_32 and q8_256 records, flat; those with a `quantizers`
    address by FORM_* (else 0) are filled here for the listed pairs. Groups whose down has no kernel are left alone.
    """
    used = set(np.unique(table.down_types).tolist())
    tiles.require(used)
    n_pairs = d.shape[0]
    x_rows = np.stack([row_addresses(records[2 * f], records[2 * f + 1], n_pairs) for f in range(3)])
    d_rows = row_addresses(d.__array_interface__["data"][0], d.strides[0], n_pairs)
    scratch = tiles.scratch(n_parts, table.intermediate_size, used)
    _down(
        tiles.functions, table.down, table.down_types, groups.expert_ids, groups.offsets, which, tiles.lanes,
        table.intermediate_size, x_rows, d_rows, table.hidden_size, quantizers[1], quantizers[2], add, bias, *scratch,
        n_parts,
    )  # fmt: skip
