"""The gated delta rule (arXiv 2412.06464, section 3) as the recurrence that defines it, one token after the other."""

from __future__ import annotations

import numpy as np

from kernels.delta_rule import DELTA_NORM_EPS, DeltaRule


def _unit_rows(x: np.ndarray) -> np.ndarray:
    return np.asarray(x / np.sqrt((x * x).sum(axis=-1, keepdims=True) + DELTA_NORM_EPS))


def key_head_of(rule: DeltaRule) -> np.ndarray:
    """Which key head each value head reads, see `DeltaRule.tiled`."""
    heads = np.arange(rule.num_heads)
    return heads % rule.num_key_heads if rule.tiled else heads // (rule.num_heads // rule.num_key_heads)


def delta_rule_ref(
    qkv: np.ndarray, beta: np.ndarray, alpha: np.ndarray, rule: DeltaRule, state: np.ndarray
) -> np.ndarray:
    """What `Backend.delta_rule` says, in float64: [T, H * dv]. Mutates `state` [H, dk, dv], rounded once a call."""
    n_tokens, keys, width = qkv.shape[0], rule.num_key_heads, rule.key_dim
    qkv64 = qkv.astype(np.float64)
    q, k = (qkv64[:, i * keys * width : (i + 1) * keys * width].reshape(n_tokens, keys, width) for i in (0, 1))
    v = qkv64[:, 2 * keys * width :].reshape(n_tokens, rule.num_heads, rule.value_dim)
    own = key_head_of(rule)
    q, k = _unit_rows(q)[:, own] * width**-0.5, _unit_rows(k)[:, own]  # [T, H, dk]
    rate = np.exp(-np.logaddexp(0.0, -beta.astype(np.float64)))  # [T, H]
    kept = np.exp(rule.decay * np.logaddexp(0.0, alpha.astype(np.float64) + rule.dt_bias))
    memory, out = state.astype(np.float64), np.zeros((n_tokens, rule.num_heads, rule.value_dim))
    for t in range(n_tokens):
        memory *= kept[t, :, None, None]
        recalled = np.einsum("hkv,hk->hv", memory, k[t])
        memory += np.einsum("hk,hv->hkv", k[t], rate[t, :, None] * (v[t] - recalled))
        out[t] = np.einsum("hkv,hk->hv", memory, q[t])
    state[:] = memory
    return out.reshape(n_tokens, -1)
