"""The ops of layers that carry a state from token to token, part of the op set of `kernels.backend`, which says what
letters and arrays mean.
"""

from __future__ import annotations

from typing import Any, Protocol

from kernels.delta_rule import DeltaRule
from kernels.selective_scan import SelectiveScan

Array = Any  # as in kernels.backend


class RecurrentOps(Protocol):
    """Each leaves the state as the last token made it, so that a sequence may be cut into calls anywhere."""

    def causal_conv(self, x: Array, kernel: Array, state: Array, silu: bool, bias: Array | None = None) -> Array:
        """Causal convolution of each channel on its own over `state` [K - 1, C] and behind it x [T, C], by kernel
        [K, C] (last row: the token itself), plus `bias` float32 [C], and silu of it where `silu`: float32 [T, C].
        `state` is left with the last K - 1 inputs.
        """
        ...

    def delta_rule(self, qkv: Array, beta: Array, alpha: Array, rule: DeltaRule, state: Array) -> Array:
        """Gated delta rule over rows qkv [T, (q: Hk * dk | k: Hk * dk | v: H * dv)] with gates [T, H], token by token.

        q and k are divided by sqrt(their head's sum of squares + DELTA_NORM_EPS), q also by sqrt(dk). Then for each
        head: S *= exp(decay * softplus(alpha + dt_bias)); S += k (sigmoid(beta) * (v - S^T k))^T; out = S^T q.
        float32 [T, H * dv]; `state` float32 [H, dk, dv] is S and is left as the last token made it. Rows of qkv, beta
        and alpha may lie apart.
        """
        ...

    def selective_scan(self, xbc: Array, dt: Array, scan: SelectiveScan, state: Array) -> Array:
        """Selective scan of Mamba-2 over rows xbc [T, (x: H * p | B: G * n | C: G * n)] with steps dt [T, H], token by
        token.

        For each head, with its group's B and C and s = softplus(dt + dt_bias): S *= exp(decay * s); S += B (s x)^T;
        out = S^T C + skip * x. float32 [T, H * p]; `state` float32 [H, n, p] is S and is left as the last token made
        it. Rows of xbc and dt may lie apart.
        """
        ...
