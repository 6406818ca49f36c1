"""Linear layers for many tokens: each tile of weight rows is decoded once and used for every token of the call.

For one token or a few, linear.py reads the blocks directly. A tile's products are in matmul_dots; experts are in
matmul_experts. A (row, token) result depends on neither the other tokens nor the number of threads.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numba import njit, prange

from kernels.backend import Weight
from kernels.cpu.dots import DIRECT_TYPES
from kernels.cpu.features import Target
from kernels.cpu.matmul_dots import N_DOTS_ARGUMENTS, emit_dots
from kernels.cpu.matmul_tile import block_columns, emit_tile, lanes_of, tile_bytes
from kernels.cpu.native import address_of
from kernels.cpu.native_call import call_native
from kernels.cpu.quantize_activations import FORM_F32, form_of
from kernels.quant_types import QuantType, block_bytes, block_size, row_bytes
from kernels.reference.dequant import matrix_at

MIN_TOKENS = 4
"""From this many tokens on a decoded tile beats reading the blocks again for each token."""

SLICE_BYTES = 4 << 20
"""Float32 bytes of a weight without a tile kernel that are dequantised at a time."""

# columns of TileTable.functions
TILE, DOTS, BLOCK, BLOCK_BYTES, FORM = range(5)


class TileTable:
    """The tile kernels of one target by quant type id, compiled as `require` asks for them.

    Row `id` of `functions` int64 [256, 5]: address of `tile` (0: no kernel), address of `dots`, weights a block, bytes
    a block, FORM_* of the activations.
    """

    def __init__(self, target: Target) -> None:
        self.target = target
        self.lanes = lanes_of(target.isa)
        self.functions = np.zeros((256, 5), np.int64)
        self._scratch = np.empty(0, np.uint8)

    def require(self, quant_types: Iterable[int]) -> None:
        """Compile the kernels of those `quant_types` (ids) that have one."""
        for type_id in quant_types:
            quant_type = QuantType(type_id)
            if self.functions[type_id, TILE] or quant_type not in DIRECT_TYPES:
                continue
            name = quant_type.name.lower()
            dots = address_of(f"dots_{name}", N_DOTS_ARGUMENTS, emit_dots(quant_type), self.target)
            tile = address_of(f"tile_{name}", 5, emit_tile(quant_type), self.target)
            self.functions[type_id] = tile, dots, block_size(quant_type), block_bytes(quant_type), form_of(quant_type)

    def scratch(self, n_parts: int, n_cols: int, quant_types: Iterable[int]) -> tuple[int, int]:
        """(address, bytes a part) of workspace for one tile in each of n_parts threads, kept until the next call."""
        direct = [QuantType(t) for t in quant_types if QuantType(t) in DIRECT_TYPES]
        sizes = [
            tile_bytes(t, n_cols, self.target.isa)
            for t in direct
            if n_cols % block_columns(t) == 0 or block_size(t) == 1
        ]
        part_bytes = -(-max(sizes, default=0) // 4096) * 4096 + 64
        if self._scratch.size < n_parts * part_bytes + 64:
            self._scratch = np.empty(n_parts * part_bytes + 64, np.uint8)
        address = int(self._scratch.__array_interface__["data"][0])
        return (address + 63) // 64 * 64, part_bytes


@njit(nogil=True, cache=True)
def tile_range(n_rows, lanes, part, n_parts):
    """Rows (first, stop) of part `part` of n_parts: whole tiles, the same share for every matrix of this height."""
    n_tiles = (n_rows + lanes - 1) // lanes
    return part * n_tiles // n_parts * lanes, min(n_rows, (part + 1) * n_tiles // n_parts * lanes)


@njit(nogil=True, cache=True)
def tile_rows(kernel, address, first, stop, n_cols, lanes, n_tokens, x_rows, out_rows, first_column, scratch):
    """Rows first..stop-1 of the matrix at `address` times n_tokens records; row r goes to column first_column + r.

    kernel: a row of TileTable.functions. x_rows, out_rows: addresses of int64 arrays of addresses, one a token.
    """
    n_bytes = n_cols // kernel[BLOCK] * kernel[BLOCK_BYTES]
    for r in range(first, stop, lanes):
        n = min(lanes, stop - r)
        call_native(kernel[TILE], address + r * n_bytes, n_bytes, n, n_cols, scratch)
        call_native(kernel[DOTS], scratch, n, n_cols, n_tokens, x_rows, out_rows, 4 * (first_column + r))


@njit(nogil=True, cache=True, parallel=True)
def _matmul(functions, plan, lanes, n_cols, x_rows, out_rows, scratch, scratch_bytes, n_parts):
    """plan int64 [n_weights, 4]: type id, address, rows, first column; x_rows int64 [3, T] by FORM_*; out_rows [T]."""
    for part in prange(n_parts):
        for w in range(plan.shape[0]):
            kernel = functions[plan[w, 0]]
            if kernel[TILE] == 0:
                continue
            first, stop = tile_range(plan[w, 2], lanes, part, n_parts)
            tile_rows(
                kernel, plan[w, 1], first, stop, n_cols, lanes, out_rows.shape[0], x_rows[kernel[FORM]].ctypes.data,
                out_rows.ctypes.data, plan[w, 3], scratch + part * scratch_bytes,
            )  # fmt: skip


def row_addresses(address: int, stride: int, rows: np.ndarray | int) -> np.ndarray:
    """int64 addresses of the records `rows` (an index array, or a count: the first ones)."""
    index = np.arange(rows, dtype=np.int64) if isinstance(rows, int) else rows.astype(np.int64)
    return np.asarray(address + stride * index)


def matmul(
    weights: Sequence[Weight], records: Sequence[int], out: np.ndarray, tiles: TileTable, n_parts: int, first: int = 0
) -> None:
    """Write the products of `weights` side by side into columns first.. of float32 out [T, N].

    records: (address, stride) of the activations by FORM_*, flat: f32, q8_32, q8_256; 0 where no weight needs the form.
    Columns of weights without a tile kernel are left alone (see `matmul_dequantized`).
    """
    n_tokens, n_cols = out.shape[0], weights[0].n_cols
    types = {int(w.quant_type) for w in weights}
    tiles.require(types)
    plan = np.empty((len(weights), 4), np.int64)
    for i, w in enumerate(weights):
        plan[i] = w.quant_type, w.data.__array_interface__["data"][0], w.n_rows, first
        first += w.n_rows
    x_rows = np.stack([row_addresses(records[2 * f], records[2 * f + 1], n_tokens) for f in range(3)])
    out_rows = row_addresses(out.__array_interface__["data"][0], out.strides[0], n_tokens)
    scratch = tiles.scratch(n_parts, n_cols, types)
    _matmul(tiles.functions, plan, tiles.lanes, n_cols, x_rows, out_rows, *scratch, n_parts)


def matmul_dequantized(
    address: int, quant_type: QuantType, n_rows: int, x: np.ndarray, out: np.ndarray, tiles: TileTable, n_parts: int
) -> None:
    """out [T, n_rows] = x [T, n_cols] @ W^T for blocks without a tile kernel, a slice of float32 rows at a time.

    Rows of float32 x and out may lie apart; out is written.
    """
    n_cols = x.shape[1]
    n_bytes, step = row_bytes(quant_type, n_cols), max(1, SLICE_BYTES // (4 * n_cols))
    records = [0] * 6
    records[2 * FORM_F32 : 2 * FORM_F32 + 2] = int(x.__array_interface__["data"][0]), x.strides[0]
    for first in range(0, n_rows, step):
        n = min(step, n_rows - first)
        floats = np.ascontiguousarray(matrix_at(address + first * n_bytes, quant_type, n, n_cols))
        part = Weight(floats.view(np.uint8), QuantType.F32, n, n_cols)
        matmul([part], records, out, tiles, n_parts, first)
