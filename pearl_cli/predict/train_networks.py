"""The networks that are trained, in torch: all layers side by side. Their twins for the runtime, in numpy, are in
`horizon.py`, `trajectory.py` and `mlp.py`; a test holds the two together.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

GRU_LAYERS = 2


class Head(nn.Module):  # type: ignore[misc]
    """What both networks end in: hidden state h [..., L, W], features [..., L, F, E] -> logits [..., L, K, E].

    logits = W2 h + b2 + sum_f C_kf features_f; F may be 0, and then uses are taken to be rare before anything is known.
    """

    def __init__(self, layers: int, width: int, horizon: int, experts: int, features: int) -> None:
        super().__init__()
        self.w2 = nn.Parameter(torch.randn(layers, width, horizon * experts) * 0.1 / width**0.5)
        self.b2 = nn.Parameter(torch.full((layers, horizon * experts), -2.0 if not features else 0.0))
        self.c = nn.Parameter(torch.zeros(layers, horizon, features))
        if features:
            with torch.no_grad():
                self.c[:, :, 1] = 1.0
        self._shape = (horizon, experts)

    def forward(self, h: Tensor, features: Tensor) -> Tensor:
        logits = (torch.einsum("...lw,lwo->...lo", h, self.w2) + self.b2).unflatten(-1, self._shape)
        return logits + torch.einsum("lkf,...lfe->...lke", self.c, features) if features.shape[-2] else logits


class PerLayerMLP(nn.Module):  # type: ignore[misc]
    """Two layers per model layer, relu(W1 x + b1) and the head: x [B, L, D], features [B, L, F, E] -> logits [B, L, K,
    E].
    """

    def __init__(self, layers: int, hidden: int, width: int, horizon: int, experts: int, features: int) -> None:
        super().__init__()
        self.w1 = nn.Parameter(torch.randn(layers, hidden, width) / hidden**0.5)
        self.b1 = nn.Parameter(torch.zeros(layers, width))
        self.head = Head(layers, width, horizon, experts, features)

    def forward(self, x: Tensor, features: Tensor) -> Tensor:
        return self.head(torch.relu(torch.einsum("bld,ldw->blw", x, self.w1) + self.b1), features)


class Trajectory(nn.Module):  # type: ignore[misc]
    """PEARL's predictor per model layer: projection of the router input, two GRU layers over decode steps, the head.
    x [B, T, L, D], features [B, T, L, F, E] -> logits [B, T, L, K, E].
    """

    def __init__(self, layers: int, hidden: int, width: int, horizon: int, experts: int, features: int) -> None:
        super().__init__()
        self.proj = nn.Parameter(torch.randn(layers, hidden, width) / hidden**0.5)
        self.gru = nn.ModuleList(nn.GRU(width, width, GRU_LAYERS, batch_first=True) for _ in range(layers))
        self.head = Head(layers, width, horizon, experts, features)

    def forward(self, x: Tensor, features: Tensor) -> Tensor:
        projected = torch.einsum("btld,ldw->btlw", x, self.proj)
        states = torch.stack([gru(projected[:, :, i])[0] for i, gru in enumerate(self.gru)], dim=2)
        return self.head(states, features)
