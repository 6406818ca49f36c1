"""Tile sizes of the Triton kernels: pure functions of shape, quant type and device, without triton or torch.

What a tile means is in the kernel that takes it. Sizes follow from registers and from filling the device; none was
tuned by timing, because no GPU was at hand.
"""

from __future__ import annotations

from dataclasses import dataclass

from kernels.quant_types import QuantType, block_size

SLOTS: dict[QuantType, int] = {
    QuantType.F32: 1,
    QuantType.F16: 1,
    QuantType.BF16: 1,
    QuantType.Q8_0: 2,
    QuantType.Q4_0: 4,
    QuantType.IQ4_NL: 4,
    QuantType.MXFP4: 2,
    QuantType.Q4_K: 8,
    QuantType.Q5_K: 8,
    QuantType.Q6_K: 8,
}
"""Weights a lane of `kernels.gpu.blocks` holds; its keys are the types that have GPU kernels."""

DECODE_TOKENS = 8
"""Up to this many tokens a call is memory-bound and weights are multiplied without tensor cores."""


@dataclass(frozen=True, slots=True)
class Device:
    """What a tile choice depends on. arch: "sm_90", "gfx942", or "interpreter" (Triton's, on the CPU, where a program
    costs much and registers are free).
    """

    arch: str
    num_units: int  # streaming multiprocessors or compute units

    @property
    def interpreted(self) -> bool:
        return self.arch == "interpreter"

    @property
    def is_amd(self) -> bool:
        return self.arch.startswith("gfx")


INTERPRETER = Device("interpreter", 1)


@dataclass(frozen=True, slots=True)
class RowTile:
    """block_n weight rows times block_w lanes a step, for block_t tokens at once."""

    block_t: int
    block_n: int
    block_w: int
    num_warps: int


@dataclass(frozen=True, slots=True)
class MatmulTile:
    """block_m tokens times block_n weight rows, block_w lanes a step."""

    block_m: int
    block_n: int
    block_w: int
    num_warps: int
    num_stages: int


@dataclass(frozen=True, slots=True)
class AttentionTile:
    """block_r query rows times block_l cache positions a step; the head width is cut into block_d; a decode split
    walks split_length positions.
    """

    block_r: int
    block_l: int
    block_d: int
    split_length: int
    num_warps: int
    num_stages: int


def next_power_of_two(n: int) -> int:
    """The smallest power of two that is at least n, 1 for n <= 1."""
    return 1 << max(n - 1, 0).bit_length()


def lanes_of(quant_type: QuantType, n_cols: int) -> int:
    """Lanes of a row. Raises ValueError for a type without GPU kernels or a width that its blocks do not divide."""
    if quant_type not in SLOTS:
        supported = ", ".join(t.name for t in SLOTS)
        raise ValueError(f"{quant_type.name} has no GPU kernel; there are {supported}")
    if n_cols % block_size(quant_type):
        raise ValueError(f"{quant_type.name} stores blocks of {block_size(quant_type)} weights, not rows of {n_cols}")
    return n_cols // SLOTS[quant_type]


def row_tile(quant_type: QuantType, n_rows: int, n_cols: int, n_tokens: int, device: Device) -> RowTile:
    """The tile of a matrix times 1 to DECODE_TOKENS tokens."""
    n_lanes = next_power_of_two(lanes_of(quant_type, n_cols))
    block_t = next_power_of_two(n_tokens)
    if device.interpreted:
        return RowTile(block_t, min(next_power_of_two(n_rows), 256), min(n_lanes, 512 // block_t), 1)
    # One lane a thread of four warps; narrow lanes hold less, so a step takes more of them.
    block_w = min(n_lanes, 128 if SLOTS[quant_type] > 2 else 256)
    # Fewer rows a program where that leaves units idle, and where each token needs its own accumulators.
    block_n = 4 if block_t <= 2 else 2
    while block_n > 1 and -(-n_rows // block_n) < 2 * device.num_units:
        block_n //= 2
    return RowTile(block_t, block_n, block_w, 4)


def matmul_tile(quant_type: QuantType, n_rows: int, n_tokens: int, device: Device, two: bool = False) -> MatmulTile:
    """The tile of a matrix times many tokens. `two`: gate and up together, which need two accumulators.

    For grouped experts n_tokens is the mean number of tokens of an expert.
    """
    if device.interpreted:
        return MatmulTile(min(next_power_of_two(max(n_tokens, 16)), 64), min(next_power_of_two(n_rows), 256), 128, 1, 1)
    block_m = 16 if n_tokens <= 16 else 32 if n_tokens <= 32 or two else 64
    # Wider steps hold so many words and scales at once that Q6_K spills on sm_80 (255 registers at 32 lanes).
    block_w = 16 if SLOTS[quant_type] > 2 else 32
    if device.arch == "sm_89" and quant_type in (QuantType.Q5_K, QuantType.IQ4_NL) and not two:
        block_w = 8  # at 16 ptxas spills 16 bytes there (255 and 168 registers); gate and up spill at 8 instead
    return MatmulTile(block_m, 64, block_w, 4, 1)


def attention_tile(head_dim: int, n_rows: int, capacity: int, device: Device) -> AttentionTile:
    """The tile of n_rows query rows (tokens x query heads of one key head) over heads of `head_dim` in a cache of
    `capacity` positions.
    """
    block_d = max(min(next_power_of_two(head_dim), 128), 16)
    # At most 128 splits, whatever the context: their partial results are read again.
    split_length = max(256, next_power_of_two(-(-capacity // 128)))
    if device.interpreted:
        return AttentionTile(max(16, min(next_power_of_two(n_rows), 64)), 128, block_d, split_length, 1, 1)
    if head_dim > 256:  # latent attention: 512 output columns stay in registers, which leaves few for keys
        # Many rows: 64 components at once spill 16 bytes on sm_80 and 28 on sm_100.
        return AttentionTile(16, 16, 64 if n_rows <= 16 else 32, split_length, 8, 1)
    return AttentionTile(16 if n_rows <= 16 else 32, 32, block_d, split_length, 4, 1)
