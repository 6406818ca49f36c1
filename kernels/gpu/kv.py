"""How keys and values are stored in the cache: kinds, their storage, and reading and writing them inside a kernel."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.gpu.precision import rounded
from kernels.quant_types import QuantType, row_bytes

F32_CACHE = tl.constexpr(0)
F16_CACHE = tl.constexpr(1)
Q8_0_CACHE = tl.constexpr(2)

KIND_OF: dict[str, int] = {"f32": F32_CACHE.value, "f16": F16_CACHE.value, "q8_0": Q8_0_CACHE.value}


def new_storage(n_heads: int, capacity: int, width: int, kind: str, device: torch.device) -> torch.Tensor:
    """Zeroed [n_heads, capacity, width] of float32 or float16, or uint8 blocks. Raises ValueError for a kind or width
    that cannot be stored.
    """
    if kind not in KIND_OF:
        raise ValueError(f"KV cache type {kind!r}; there are {', '.join(KIND_OF)}")
    if kind == "q8_0":
        return torch.zeros((n_heads, capacity, row_bytes(QuantType.Q8_0, width)), dtype=torch.uint8, device=device)
    dtype = torch.float32 if kind == "f32" else torch.float16
    return torch.zeros((n_heads, capacity, width), dtype=dtype, device=device)


@triton.jit
def read_tile(cache_ptr, rows, c, mask, width, KIND: tl.constexpr, PRECISION: tl.constexpr):
    """Components `c` of rows `rows` (int64, head * capacity + slot), broadcast together, as float32 that tensor cores
    of PRECISION take as they are; masked ones 0. Half floats fit TF32 exactly.
    """
    if KIND == Q8_0_CACHE:
        block = cache_ptr + rows * (width // 32 * 34) + c // 32 * 34
        q = tl.load((block + 2 + c % 32).to(tl.pointer_type(tl.int8)), mask=mask, other=0)
        d = tl.load(block.to(tl.pointer_type(tl.float16)), mask=mask, other=0.0)
        return rounded(q.to(tl.float32) * d.to(tl.float32), PRECISION)
    elif KIND == F16_CACHE:
        return tl.load(cache_ptr + rows * width + c, mask=mask, other=0.0).to(tl.float32)
    else:
        return rounded(tl.load(cache_ptr + rows * width + c, mask=mask, other=0.0), PRECISION)


@triton.jit
def write_block(cache_ptr, row, x, c, width, KIND: tl.constexpr, BLOCK: tl.constexpr):
    """Store the float32 row x [BLOCK] at `row` in the cache's kind; c = arange(BLOCK), components from `width` on are
    left out.
    """
    if KIND == Q8_0_CACHE:
        blocks = tl.reshape(tl.where(c < width, x, 0.0), (BLOCK // 32, 32))
        d = tl.div_rn(tl.max(tl.abs(blocks), axis=1), 127.0)
        inverse = tl.where(d == 0.0, 0.0, tl.div_rn(1.0, tl.where(d == 0.0, 1.0, d)))
        scaled = blocks * inverse[:, None]
        whole = tl.floor(tl.abs(scaled))
        size = whole + tl.floor(2.0 * (tl.abs(scaled) - whole))  # halves away from zero, as ggml's roundf
        q = tl.where(scaled < 0, -size, size).to(tl.int8)
        b = tl.arange(0, BLOCK // 32)
        base = cache_ptr + row * (width // 32 * 34) + b * 34
        mask = b * 32 < width
        tl.store(base.to(tl.pointer_type(tl.float16)), d.to(tl.float16), mask=mask)
        place = base[:, None] + 2 + tl.arange(0, 32)[None, :]
        tl.store(place.to(tl.pointer_type(tl.int8)), q, mask=mask[:, None])
    elif KIND == F16_CACHE:
        tl.store(cache_ptr + row * width + c, x.to(tl.float16), mask=c < width)
    else:
        tl.store(cache_ptr + row * width + c, x, mask=c < width)
