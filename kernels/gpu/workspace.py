"""`Workspace`: memory for what ops give back while a token is decoded, handed out again for the next one.

A token makes the same calls as the one before, so each shape is asked for as often: after the first tokens nothing is
allocated. What is handed out stays as it is until the model is called again, which is more than `Backend` promises.
"""

from __future__ import annotations

import torch

from kernels.gpu.tiling import DECODE_TOKENS

_MOST_KEPT = 512  # of a shape; whoever asks for more between two calls of a model is no model


class Fresh:
    """Everything is allocated: for what a recording leaves, which lives as long as the recording."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def take(self, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Uninitialised memory."""
        return torch.empty(shape, dtype=dtype, device=self._device)

    def restart(self) -> None:
        """Nothing is handed out twice."""


class Workspace(Fresh):
    """Of arrays of up to DECODE_TOKENS rows; those of prompts are too large to keep."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self._kept: dict[tuple[tuple[int, ...], torch.dtype], list[torch.Tensor]] = {}
        self._given: dict[tuple[tuple[int, ...], torch.dtype], int] = {}

    def take(self, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Uninitialised memory that nobody else is given before `restart`."""
        if shape[0] > DECODE_TOKENS:
            return super().take(shape, dtype)
        key = shape, dtype
        kept, at = self._kept.setdefault(key, []), self._given.get(key, 0)
        if at == len(kept):
            if at == _MOST_KEPT:
                return super().take(shape, dtype)
            kept.append(super().take(shape, dtype))
        self._given[key] = at + 1
        return kept[at]

    def restart(self) -> None:
        """A model's call begins: all that was handed out before may be handed out again."""
        self._given.clear()
