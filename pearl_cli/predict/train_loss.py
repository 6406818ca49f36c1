"""PEARL's loss: horizon-weighted binary cross entropy and a soft calibration penalty, in torch."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

GAMMA = 0.7  # weight of one more event ahead
CALIBRATION_WEIGHT = 0.1
_BINS = 10


def horizon_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """sum_k gamma^(k-1) BCE(p_k, y_k) / sum_k gamma^(k-1) + weight * soft ECE. Both [..., K, E]; NaN labels are left
    out.
    """
    horizon = logits.shape[-2]
    weights = GAMMA ** torch.arange(horizon, dtype=logits.dtype)
    valid = ~torch.isnan(labels)
    target = torch.where(valid, labels, torch.zeros(()))
    bce = F.binary_cross_entropy_with_logits(logits, target, reduction="none") * valid
    dims = tuple(i for i in range(logits.ndim) if i != logits.ndim - 2)
    per_horizon = bce.sum(dims) / valid.sum(dims).clamp(min=1)
    calibration = sum(
        soft_calibration_error(torch.sigmoid(logits[..., k, :])[valid[..., k, :]], target[..., k, :][valid[..., k, :]])
        for k in range(horizon)
    )
    return (weights * per_horizon).sum() / weights.sum() + CALIBRATION_WEIGHT * calibration / horizon


def soft_calibration_error(p: Tensor, y: Tensor) -> Tensor:
    """ECE with each pair shared linearly between the two nearest of 10 bin centres, so that it has a gradient."""
    place = p * _BINS - 0.5
    low = place.detach().floor().clamp(0, _BINS - 2).long()
    high_share = (place - low).clamp(0, 1)
    gaps = p - y
    sums = torch.zeros(_BINS).index_add(0, low, gaps * (1 - high_share)).index_add(0, low + 1, gaps * high_share)
    return sums.abs().sum() / max(p.numel(), 1)
