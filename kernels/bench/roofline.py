"""What one launch of each GPU kernel must move and compute, and the least time that named GPUs can take for it.

The floor is the larger of bytes over memory bandwidth and operations over the peak of the units that do them: nothing
is measured here. Weights and caches are counted once a launch, activations read and written once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kernels.bench.shapes import Shape
from kernels.gpu.tiling import DECODE_TOKENS
from kernels.quant_types import QuantType, row_bytes


@dataclass(frozen=True, slots=True)
class Gpu:
    """Peaks from the maker's data sheet, dense. tensor: TF32 (xf32 on AMD)."""

    name: str
    memory_gb_s: float
    float32_tflop_s: float
    tensor_tflop_s: float


GPUS = (
    Gpu("H100", 3350, 67.0, 495.0),
    Gpu("H200", 4800, 67.0, 495.0),
    Gpu("A100", 2039, 19.5, 156.0),
    Gpu("L40S", 864, 91.6, 183.0),
    Gpu("RTX 4090", 1008, 82.6, 82.6),
    Gpu("RTX 5090", 1792, 104.8, 104.8),
    Gpu("MI300X", 5300, 163.4, 653.7),
)


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch. on_tensor_units: which peak its operations are held against."""

    op: str
    n_bytes: int
    n_flops: int
    on_tensor_units: bool = False


def floor_us(launch: Launch, gpu: Gpu) -> float:
    """Microseconds below which `gpu` cannot go."""
    peak = gpu.tensor_tflop_s if launch.on_tensor_units else gpu.float32_tflop_s
    return max(launch.n_bytes / (gpu.memory_gb_s * 1e3), launch.n_flops / (peak * 1e6))


def experts_used(shape: Shape, n_tokens: int) -> float:
    """Expected number of distinct experts of n_tokens that choose evenly at random."""
    return shape.num_experts * (1 - (1 - shape.num_experts_per_tok / shape.num_experts) ** n_tokens)


def launches(shape: Shape, quant_type: QuantType, n_tokens: int, depth: int) -> Iterator[Launch]:
    """The launches of one layer and of the output matrix, with the last of n_tokens at position depth - 1.

    Keys and values are half floats. Up to DECODE_TOKENS are computed without tensor units.
    """
    hidden, width, k = shape.hidden_size, shape.moe_intermediate_size, shape.num_experts_per_tok
    many = n_tokens > DECODE_TOKENS
    heads, kv = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    floats = 4 * n_tokens

    def linear(op: str, n_rows: int, n_cols: int, stored: QuantType = quant_type) -> Launch:
        n_bytes = n_rows * row_bytes(stored, n_cols) + floats * (n_rows + n_cols)
        return Launch(op, n_bytes, 2 * n_tokens * n_rows * n_cols, many and stored != QuantType.F32)

    yield Launch("norm", floats * 2 * hidden + 4 * hidden, 4 * n_tokens * hidden)
    yield linear("q, k and v", heads + 2 * kv, hidden)
    turned = 2 * floats * (heads + kv) + floats * kv + 2 * n_tokens * 2 * kv  # q, k read and written, v read, cache
    yield Launch("rope and KV write", turned, 6 * n_tokens * heads)
    pairs = n_tokens * depth - n_tokens * (n_tokens - 1) // 2
    # 2 products, each with the queries or weights in two TF32 parts.
    yield Launch("attention", 2 * depth * 2 * kv + 2 * floats * heads, 2 * 4 * pairs * heads, True)
    yield linear("attention output", hidden, heads)
    yield linear("router matrix", shape.num_experts, hidden, QuantType.F32)
    yield Launch("router", floats * (shape.num_experts + 2 * k), 8 * n_tokens * shape.num_experts)
    used, n_pairs = experts_used(shape, n_tokens), n_tokens * k
    matrix = width * row_bytes(quant_type, hidden), hidden * row_bytes(quant_type, width)
    gate_up = round(used * 2 * matrix[0]) + floats * hidden + 4 * n_pairs * width
    yield Launch("experts, gate and up", gate_up, 4 * n_pairs * width * hidden, many)
    down = round(used * matrix[1]) + 4 * n_pairs * width
    if many:
        yield Launch("experts, down", down + 4 * n_pairs * hidden, 2 * n_pairs * width * hidden, True)
        yield Launch("experts, sum", 4 * n_pairs * hidden + floats * hidden, 2 * n_pairs * hidden)
    else:
        yield Launch("experts, down and sum", down + floats * hidden, 2 * n_pairs * width * hidden)
    last = shape.vocab_size * row_bytes(quant_type, hidden) + 4 * (shape.vocab_size + hidden)
    yield Launch("output matrix", last, 2 * shape.vocab_size * hidden)


def roofline(shape: Shape, quant_type: QuantType, n_tokens: int, depth: int) -> list[dict[str, object]]:
    """A record a launch: op, shape, type, tokens, depth, bytes, operations, and the floor on each GPU."""
    return [
        {
            "op": launch.op,
            "shape": shape.name,
            "type": quant_type.name,
            "n_tokens": n_tokens,
            "depth": depth,
            "n_bytes": launch.n_bytes,
            "n_flops": launch.n_flops,
            "floor_us": {gpu.name: round(floor_us(launch, gpu), 3) for gpu in GPUS},
        }
        for launch in launches(shape, quant_type, n_tokens, depth)
    ]


def table(records: list[dict[str, object]]) -> str:
    """Records of `roofline` as text, one block a shape, type and number of tokens."""
    lines, heading = [], None
    for r in records:
        now = f"{r['shape']} {r['type']}, {r['n_tokens']} tokens to position {r['depth']}, floor in microseconds"
        if now != heading:
            heading = now
            heads = "".join(f"{gpu.name:>10}" for gpu in GPUS)
            lines += ["", heading, f"{'launch':<22}{'MB':>10}{'GFLOP':>10}{heads}"]
        floors = r["floor_us"]
        assert isinstance(floors, dict)
        shown = "".join(f"{floors[gpu.name]:>10.2f}" for gpu in GPUS)
        size, work = float(str(r["n_bytes"])) / 1e6, float(str(r["n_flops"])) / 1e9
        lines.append(f"{r['op']:<22}{size:>10.3f}{work:>10.3f}{shown}")
    return "\n".join(lines[1:])
