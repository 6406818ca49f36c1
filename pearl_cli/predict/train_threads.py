"""How many threads torch may use."""

from __future__ import annotations

import torch


def set_threads(threads: int) -> None:
    torch.set_num_threads(threads)
