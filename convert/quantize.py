"""float32 rows to any storage type: plain floats here, blocks by the vectorised quantisers of `kernels.cpu`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kernels.quant_types import QuantType
from kernels.reference.dequant import dequantize_rows
from models.errors import ConversionError

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]
F16_MAX = 65504.0


def quantize_rows(values: Floats, quant_type: QuantType, name: str, importance: Floats | None = None) -> Bytes:
    """`values` [n, n_cols] stored as `quant_type`, flat uint8. `name` is the tensor's, for messages; `importance`
    [n_cols] says how much an error in each column counts.

    Raises ConversionError where the type cannot hold a value: not finite, or beyond what half precision leaves it.
    """
    if quant_type is QuantType.F32:
        return values.astype("<f4", copy=False).reshape(-1).view(np.uint8)
    if quant_type is QuantType.BF16:
        return to_bf16(values).reshape(-1).view(np.uint8)
    if quant_type is QuantType.Q8_0:
        return quantize_q8_0_rows(values, name)
    largest = _largest(values)
    _check_finite(largest, quant_type, name)
    if quant_type is QuantType.F16:
        with np.errstate(over="ignore"):
            halves = values.astype("<f2")
        if not np.isfinite(halves).all():
            raise ConversionError(
                f"tensor {name} holds weights beyond {F16_MAX:g}, which F16 cannot store; use bf16 or f32"
            )
        return halves.reshape(-1).view(np.uint8)
    from kernels.cpu.quantize import quantize_blocks

    with np.errstate(over="ignore", invalid="ignore"):  # scales beyond half precision are seen below
        blocks: Bytes = quantize_blocks(values, quant_type, importance)
    if largest > F16_MAX:
        _check_kept(values, blocks, quant_type, name)
    return blocks.reshape(-1)


def quantize_q8_0_rows(values: Floats | NDArray[np.uint16], name: str) -> Bytes:
    """As `quantize_rows` for Q8_0, and from bfloat16 (uint16) without a detour by float32."""
    from kernels.cpu.quantize_q8_0 import quantize_q8_0

    blocks, largest = quantize_q8_0(np.ascontiguousarray(values))
    _check_finite(largest, QuantType.Q8_0, name)
    if largest > F16_MAX * 127:
        raise _too_large(largest, QuantType.Q8_0, name)
    return blocks.reshape(-1)


def _largest(values: Floats) -> float:
    """The largest magnitude, NaN where there is a NaN."""
    return max(float(values.max()), -float(values.min())) if values.size else 0.0


def _check_finite(largest: float, quant_type: QuantType, name: str) -> None:
    if not np.isfinite(largest):
        raise ConversionError(
            f"tensor {name} holds NaN or infinite weights, which {quant_type.name} cannot store; the checkpoint is bad"
        )


def _check_kept(values: Floats, blocks: Bytes, quant_type: QuantType, name: str) -> None:
    """Large weights overflow a block's scale, which is a half float: what the largest of each row comes back as."""
    back = np.abs(dequantize_rows(blocks, quant_type, values.shape[1])).max(axis=1)
    largest = np.abs(values).max(axis=1)
    lost = ~(np.isfinite(back) & (back >= largest / 2))
    if lost.any():
        raise _too_large(float(largest[lost].max()), quant_type, name)


def _too_large(largest: float, quant_type: QuantType, name: str) -> ConversionError:
    return ConversionError(
        f"tensor {name} holds weights up to {largest:.3g}, too large for {quant_type.name}, whose scales are F16; "
        "use bf16 or f32"
    )


def to_bf16(values: Floats) -> NDArray[np.uint16]:
    """Nearest bfloat16, ties to even; NaNs stay NaNs (made quiet)."""
    bits: NDArray[np.uint32] = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded: NDArray[np.uint16] = (
        (bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))) >> np.uint32(16)
    ).astype(np.uint16)
    nan = (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
    if nan.any():
        rounded[nan] = (bits[nan] >> np.uint32(16)).astype(np.uint16) | np.uint16(0x40)
    return rounded
