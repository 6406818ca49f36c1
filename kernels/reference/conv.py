"""Causal convolution of each channel on its own, over the inputs of earlier calls too."""

from __future__ import annotations

import numpy as np

from kernels.reference.linear import silu_ref


def causal_conv_ref(
    x: np.ndarray, kernel: np.ndarray, state: np.ndarray, silu: bool, bias: np.ndarray | None = None
) -> np.ndarray:
    """out[t, c] = bias[c] + sum over j of kernel[j, c] * input[t + j, c], input being `state` and behind it x: float64
    [T, C].

    x float32 [T, C]; kernel float32 [K, C], its last row for the token itself; state float32 [K - 1, C] is left with
    the last K - 1 inputs. `silu`: x * sigmoid(x) of each sum.
    """
    n_tokens = x.shape[0]
    inputs = np.concatenate([state, x])
    out = np.zeros(x.shape) if bias is None else np.tile(bias.astype(np.float64), (n_tokens, 1))
    for j, weights in enumerate(kernel.astype(np.float64)):
        out += weights * inputs[j : j + n_tokens]
    state[:] = inputs[n_tokens:]
    return silu_ref(out) if silu else out
