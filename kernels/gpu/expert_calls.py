"""What the expert kernels of one call read beside weights: the slot table and the groups as device arrays.

A layer's table may be host arrays, of which a copy on the device follows every change, or device arrays that somebody
else changes in stream order; kernels see the second form only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from kernels.backend import ExpertGroups, ExpertTable
from kernels.quant_types import QuantType

Upload = Callable[[np.ndarray], torch.Tensor]


@dataclass(frozen=True, slots=True)
class DeviceGroups:
    """`ExpertGroups` on the device, int32, with their host form."""

    host: ExpertGroups
    expert_ids: torch.Tensor
    offsets: torch.Tensor
    token_ids: torch.Tensor
    pair_of: torch.Tensor

    @property
    def n_tokens(self) -> int:
        return int(self.host.pair_of.shape[0])

    @property
    def num_experts_per_tok(self) -> int:
        return int(self.host.pair_of.shape[1])


def upload_groups(groups: ExpertGroups, upload: Upload) -> DeviceGroups:
    """All arrays in one copy."""
    parts = (groups.expert_ids, groups.offsets, groups.token_ids, groups.pair_of.reshape(-1))
    joined = upload(np.concatenate(parts).astype(np.int32, copy=False))
    ends = np.cumsum([part.size for part in parts])
    ids, offsets, tokens, pairs = (joined[e - p.size : e] for p, e in zip(parts, ends.tolist(), strict=True))
    return DeviceGroups(groups, ids, offsets, tokens, pairs.view(groups.pair_of.shape))


def one_token(groups: ExpertGroups, expert_ids: torch.Tensor, once: Upload) -> DeviceGroups:
    """Those of one token, whose `expert_ids` int32 [K] are on the device: the rest is the same for every token."""
    offsets, tokens, pairs = (once(part) for part in (groups.offsets, groups.token_ids, groups.pair_of))
    return DeviceGroups(groups, expert_ids, offsets, tokens, pairs)


@dataclass(slots=True)
class DeviceTable:
    """Addresses int64 [E] of gate, up and down and their type ids uint8 [E] on the device; `gate_up_types` and
    `down_types` are the distinct ones, a launch each.
    """

    table: ExpertTable
    gate: torch.Tensor
    up: torch.Tensor
    down: torch.Tensor
    types: torch.Tensor  # uint8 [3, E]: gate, up, down
    gate_up_types: tuple[tuple[QuantType, QuantType], ...]
    down_types: tuple[QuantType, ...]
    seen: np.ndarray | None = None  # int64 [3, E], the host addresses that the device has; None: it has them alone


def device_table(table: ExpertTable, upload: Upload) -> DeviceTable:
    """The device form of `table`. Its types are read once; they never change."""
    kinds = np.stack([table.gate_types, table.up_types, table.down_types])
    pairs = sorted({(int(g), int(u)) for g, u in zip(kinds[0], kinds[1], strict=True)})
    downs = sorted(set(kinds[2].tolist()))
    types = upload(kinds)
    gate_up = tuple((QuantType(g), QuantType(u)) for g, u in pairs)
    down = tuple(QuantType(d) for d in downs)
    if isinstance(table.gate, torch.Tensor):
        return DeviceTable(table, table.gate, table.up, table.down, types, gate_up, down)
    seen = np.stack([table.gate, table.up, table.down])
    addresses = upload(seen.copy())
    return DeviceTable(table, addresses[0], addresses[1], addresses[2], types, gate_up, down, seen)


def follow(made: DeviceTable, upload: Upload) -> None:
    """Bring host addresses that changed since to the device."""
    if made.seen is None:
        return
    now = np.stack([made.table.gate, made.table.up, made.table.down])
    if not np.array_equal(now, made.seen):
        made.seen = now
        addresses = upload(now.copy())
        made.gate, made.up, made.down = addresses[0], addresses[1], addresses[2]
