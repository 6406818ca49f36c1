"""Rotary position embedding (arXiv 2104.09864) with both ways of pairing the components of a head."""

from __future__ import annotations

import numpy as np

from kernels.backend import RopeTable


def rope_ref(x: np.ndarray, rope: RopeTable, start: int, head_dim: int) -> np.ndarray:
    """Rotate each head of x [T, n * head_dim] for positions start, start + 1, ..: float64, the shape of x.

    Only the first `rope.n_rot` components of a head turn; the others pass. Raises ValueError past the end of the table.
    """
    n_tokens = x.shape[0]
    if start + n_tokens > rope.cos.shape[0]:
        raise ValueError(f"positions up to {start + n_tokens} in a rope table of {rope.cos.shape[0]}")
    heads = x.reshape(n_tokens, -1, head_dim).astype(np.float64)
    cos = rope.cos[start : start + n_tokens, None, :].astype(np.float64)  # [T, 1, n_rot / 2]
    sin = rope.sin[start : start + n_tokens, None, :].astype(np.float64)
    half = rope.n_rot // 2
    first = slice(0, rope.n_rot, 2) if rope.interleaved else slice(0, half)
    second = slice(1, rope.n_rot, 2) if rope.interleaved else slice(half, rope.n_rot)
    out = heads.copy()
    out[..., first] = heads[..., first] * cos - heads[..., second] * sin
    out[..., second] = heads[..., second] * cos + heads[..., first] * sin
    return np.asarray(out.reshape(x.shape))
