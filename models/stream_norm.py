"""The norm of the residual stream before each half of a block and before the output: one that takes the mean off where
a file holds a bias for it, RMS norm else.
"""

from __future__ import annotations

from collections.abc import Sequence

from kernels.backend import Activations, Array, Backend, Weight


def normed(
    backend: Backend, x: Array, weight: Array, bias: Array | None, eps: float, readers: Sequence[Weight] = ()
) -> Activations:
    """x [T, D] normed by `weight`, and `bias` where there is one; `readers` see `Backend.norm`."""
    if bias is None:
        return backend.norm(x, weight, eps, readers=readers)
    return backend.layer_norm(x, weight, bias, eps)
