"""The key/value cache and causal attention over it: plain softmax over every visible position, in float64."""

from __future__ import annotations

import numpy as np
from gguf import quants

from kernels.backend import KVLayer
from kernels.quant_types import QuantType, row_bytes
from kernels.reference.dequant import dequantize_rows

KV_DTYPES = ("f32", "f16", "q8_0")


def new_kv_ref(num_kv_heads: int, capacity: int, width: int, dtype: str) -> np.ndarray:
    """Zeroed storage for `capacity` positions of `width` components a head, see `KVLayer`.

    Raises ValueError for an unknown dtype.
    """
    if dtype == "q8_0":
        return np.zeros((num_kv_heads, capacity, row_bytes(QuantType.Q8_0, width)), np.uint8)
    if dtype not in KV_DTYPES:
        raise ValueError(f"KV cache type {dtype!r}; there are {', '.join(KV_DTYPES)}")
    return np.zeros((num_kv_heads, capacity, width), np.float32 if dtype == "f32" else np.float16)


def kv_write_ref(stored: np.ndarray, rows: np.ndarray, start: int, ring: bool = False) -> None:
    """Store rows [T, G * width] at positions start.. of `stored` [G, capacity, ..] in its own type (mutates `stored`);
    with `ring` at start % capacity.. around its end.

    Half floats that overflow become infinite. Raises ValueError past the capacity.
    """
    num_kv_heads, capacity, _ = stored.shape
    n_tokens = rows.shape[0]
    if (0 if ring else start) + n_tokens > capacity:
        raise ValueError(f"positions up to {start + n_tokens} in a KV cache of {capacity}")
    heads = rows.reshape(n_tokens, num_kv_heads, -1).swapaxes(0, 1)  # [G, T, width]
    places = np.arange(start, start + n_tokens) % capacity
    if stored.dtype == np.uint8:
        stored[:, places] = quants.quantize(np.ascontiguousarray(heads, np.float32), QuantType.Q8_0)
    else:
        with np.errstate(over="ignore"):
            stored[:, places] = heads.astype(stored.dtype)


def kv_read_ref(stored: np.ndarray, length: int) -> np.ndarray:
    """Positions 0 .. length - 1 of `stored` as float64 [G, length, width]; in a ring many are those that came later."""
    part = stored[:, np.arange(length) % stored.shape[1]]
    if part.dtype == np.uint8:
        n_cols = part.shape[-1] // row_bytes(QuantType.Q8_0, 32) * 32
        part = dequantize_rows(np.ascontiguousarray(part), QuantType.Q8_0, n_cols)
    return part.astype(np.float64)


def attention_ref(
    q: np.ndarray,
    cache: KVLayer,
    start: int,
    num_heads: int,
    scale: float,
    window: int = 0,
    sinks: np.ndarray | None = None,
) -> np.ndarray:
    """softmax(scale * q k^T) v for rotated q [T, H * d] at positions start..: float64 [T, H * dv].

    Position p sees cache positions max(0, p - window + 1)..p, or all of 0..p where window is 0. H / G query heads in a
    row share a key head. `sinks` [H] are scores without a value: each adds e^sink to its head's sum of weights. Raises
    ValueError for a ring that does not hold what the tokens see.
    """
    n_tokens = q.shape[0]
    length = start + n_tokens
    if cache.ring and not 0 < n_tokens + window - 1 <= cache.capacity:
        raise ValueError(f"{n_tokens} tokens with a window of {window} over a ring of {cache.capacity}")
    k, v = kv_read_ref(cache.k, length), kv_read_ref(cache.v, length)
    num_kv_heads = k.shape[0]
    heads = q.reshape(n_tokens, num_kv_heads, num_heads // num_kv_heads, -1).astype(np.float64)
    scores = np.einsum("tgrd,gld->tgrl", heads, k) * scale
    position = start + np.arange(n_tokens)[:, None]
    key = np.arange(length)[None, :]
    visible = key <= position
    if window > 0:
        visible &= key > position - window
    scores = np.where(visible[:, None, None, :], scores, -np.inf)
    largest, total = scores.max(axis=-1, keepdims=True), 0.0
    if sinks is not None:
        sink = sinks.astype(np.float64).reshape(1, num_kv_heads, -1, 1)
        largest = np.maximum(largest, sink)
        total = np.exp(sink - largest)
    weights = np.exp(scores - largest)
    weights /= weights.sum(axis=-1, keepdims=True) + total
    out: np.ndarray = np.einsum("tgrl,glv->tgrv", weights, v)
    return out.reshape(n_tokens, -1)
