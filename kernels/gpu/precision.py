"""How float32 numbers meet tensor cores, which multiply TF32: 8 exponent bits as float32 has, 11 significant bits.

Tensor cores drop the lower 13 bits, so numbers are rounded here before. "tf32" is for NVIDIA; "ieee" multiplies in
float32: matrices of F32 weights, attention on AMD (whose matrix units take float32), and the interpreter.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.gpu.tiling import Device
from kernels.quant_types import QuantType


def weight_precision(quant_type: QuantType, device: Device) -> str:
    """PRECISION for `dot` of weights of a type. F32 matrices are routers, whose logits decide by small differences."""
    return "ieee" if device.interpreted or quant_type == QuantType.F32 else "tf32"


def attention_precision(device: Device) -> str:
    """PRECISION for `split_dot` of queries and weights of positions with the cache."""
    return "ieee" if device.interpreted or device.is_amd else "tf32"


@triton.jit
def rounded(x, PRECISION: tl.constexpr):
    """float32 x to the nearest TF32 number, ties away from zero; x itself for "ieee"."""
    if PRECISION == "ieee":
        return x
    bits = x.to(tl.int32, bitcast=True)
    near = ((bits + 0x1000) & -8192).to(tl.float32, bitcast=True)
    return tl.where(x == x, near, x)  # the NaN of GPUs has all bits set, which the sum would turn into 0


@triton.jit
def split_dot(a, b, acc, PRECISION: tl.constexpr):
    """acc + a b with `a` as the sum of two TF32 numbers, 22 bits of it; b as it is, so already rounded."""
    if PRECISION == "ieee":
        return tl.dot(a, b, acc, input_precision="ieee")
    high = (a.to(tl.int32, bitcast=True) & -8192).to(tl.float32, bitcast=True)
    acc = tl.dot(high, b, acc, input_precision="tf32")
    return tl.dot(a - high, b, acc, input_precision="tf32")
