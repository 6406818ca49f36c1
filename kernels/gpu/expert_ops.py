"""The experts' share of the op set on a GPU: feed-forwards through slot tables, a dense one as that of one expert."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch

from kernels.backend import SILU, Activations, ExpertGroups, ExpertTable, GatedUnit, Weight
from kernels.gpu import experts_decode, experts_prefill
from kernels.gpu.dense import DenseTables
from kernels.gpu.expert_calls import DeviceGroups, DeviceTable, device_table, follow, one_token, upload_groups
from kernels.gpu.linear_ops import LinearOps
from kernels.gpu.router_ops import RouterOps
from kernels.gpu.tiling import DECODE_TOKENS, Device
from kernels.grouping import group_by_expert


class ExpertOps(RouterOps, LinearOps):
    """Part of `kernels.gpu.backend.GpuBackend`."""

    def __init__(self, device: Device | None = None) -> None:
        super().__init__(device)
        self._tables: dict[int, DeviceTable] = {}
        self._dense = DenseTables(self.keep)
        self._groups: DeviceGroups | None = None
        self._ranks: dict[int, tuple[DeviceGroups, torch.Tensor]] = {}
        self._pairs: dict[tuple[int, int], tuple[torch.Tensor, torch.Tensor]] = {}

    def gated_mlp(
        self, a: Activations, gate: Weight, up: Weight, down: Weight, unit: GatedUnit = SILU
    ) -> torch.Tensor:
        table, groups = self._dense.of(gate, up, unit), self._dense.groups(a.x.shape[0])
        h = self.memory.take((a.x.shape[0], gate.n_rows))
        if groups.n_tokens <= DECODE_TOKENS:
            experts_decode.gate_up(a.x, table, groups, self._dense.all_groups(), h, self.device)
        else:
            self._gate_up_of_many(a, table, groups, np.zeros(1, np.int32), h)
        return self.linear(Activations(h), down)

    def expert_gate_up(
        self, a: Activations, table: ExpertTable, groups: ExpertGroups, which: np.ndarray, h: torch.Tensor
    ) -> None:
        if h.shape[1] != table.intermediate_size or a.x.shape[1] != table.hidden_size:
            raise _misfit(table, a.x, h)
        if not which.size:
            return
        made, on_device = self._table(table), self._device_groups(groups)
        if on_device.n_tokens <= DECODE_TOKENS:
            experts_decode.gate_up(a.x, made, on_device, self._listed(which, on_device), h, self.device)
        else:
            self._gate_up_of_many(a, made, on_device, which, h)

    def _gate_up_of_many(
        self, a: Activations, made: DeviceTable, groups: DeviceGroups, which: np.ndarray, h: torch.Tensor
    ) -> None:
        x_of = {t: self.orders.of(a, t) for pair in made.gate_up_types for t in pair}
        experts_prefill.gate_up(x_of, made, groups, which, h, self.device, self.upload)

    def expert_down(
        self, h: torch.Tensor, table: ExpertTable, groups: ExpertGroups, which: np.ndarray, d: torch.Tensor
    ) -> None:
        if h.shape[1] != table.intermediate_size or d.shape[1] != table.hidden_size:
            raise _misfit(table, h, d)
        if not which.size:
            return
        made, on_device = self._table(table), self._device_groups(groups)
        if on_device.n_tokens <= DECODE_TOKENS:
            experts_decode.down(h, made, on_device, self._listed(which, on_device), d, self.device)
            return
        rows = Activations(h)
        h_of = {t: self.orders.of(rows, t) for t in made.down_types}
        experts_prefill.down(h_of, made, on_device, which, d, self.device, self.upload)

    def expert_combine(
        self, d: torch.Tensor, groups: ExpertGroups, topk_weights: np.ndarray | torch.Tensor
    ) -> torch.Tensor:
        return experts_decode.combine(d, self._device_groups(groups), self.on_device(topk_weights), self.memory)

    def expert_down_combine(
        self, h: torch.Tensor, table: ExpertTable, groups: ExpertGroups, topk_weights: np.ndarray | torch.Tensor
    ) -> torch.Tensor:
        """`expert_down` of all groups of one token and `expert_combine`, the same bits: one launch, or more where
        experts differ in their type of down.
        """
        made, on_device = self._table(table), self._device_groups(groups)
        weights = self.on_device(topk_weights)
        if on_device.n_tokens == 1 and len(made.down_types) == 1:
            return experts_decode.down_combine(h, made, on_device, weights, self.device, self.memory)
        d = self.memory.take((h.shape[0], table.hidden_size))
        self.expert_down(h, table, groups, np.arange(groups.expert_ids.shape[0], dtype=np.int32), d)
        return self.expert_combine(d, groups, weights)

    def experts(
        self, a: Activations, table: ExpertTable, topk_ids: np.ndarray, topk_weights: np.ndarray
    ) -> torch.Tensor:
        groups = group_by_expert(topk_ids)
        h, _ = self.pair_buffers(topk_ids.size, table.intermediate_size, table.hidden_size)
        self.expert_gate_up(a, table, groups, np.arange(groups.expert_ids.shape[0], dtype=np.int32), h)
        return self.expert_down_combine(h, table, groups, topk_weights)

    def routed_experts(
        self, a: Activations, table: ExpertTable, topk_ids: torch.Tensor, topk_weights: torch.Tensor
    ) -> torch.Tensor:
        """`experts` of one token by the router's answer on the device, int32 and float32 [1, K], the same bits: the
        launches are the same whatever was chosen.
        """
        made, k = self._table(table), topk_ids.shape[1]
        groups, which = self._rank_groups(k)
        groups = dataclasses.replace(groups, expert_ids=topk_ids[0])
        h = self.memory.take((k, table.intermediate_size))
        experts_decode.gate_up(a.x, made, groups, which, h, self.device)
        if len(made.down_types) == 1:
            return experts_decode.down_combine(h, made, groups, topk_weights, self.device, self.memory)
        d = self.memory.take((k, table.hidden_size))
        experts_decode.down(h, made, groups, which, d, self.device)
        return experts_decode.combine(d, groups, topk_weights, self.memory)

    def _rank_groups(self, k: int) -> tuple[DeviceGroups, torch.Tensor]:
        """The groups of one token that chooses any k experts, and the list of all of them; kept for good."""
        if k not in self._ranks:
            any_one = group_by_expert(np.zeros((1, k), np.int32))
            self._ranks[k] = upload_groups(any_one, self.keep), self.keep(np.arange(k, dtype=np.int32))
        return self._ranks[k]

    def pair_buffers(
        self, n_pairs: int, intermediate_size: int, hidden_size: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Workspace (h [n_pairs, F], d [n_pairs, D]) that the next call with these widths hands out again; kept at
        its largest size.
        """
        key = (intermediate_size, hidden_size)
        found = self._pairs.get(key)
        if found is None or found[0].shape[0] < n_pairs:
            h, d = (torch.empty((n_pairs, w), dtype=torch.float32, device=self.torch_device) for w in key)
            found = self._pairs[key] = (h, d)
        return found[0][:n_pairs], found[1][:n_pairs]

    def forget(self, table: ExpertTable) -> None:
        """Drop what is kept for a slot table that will not be used again."""
        self._tables.pop(id(table), None)

    def _table(self, table: ExpertTable) -> DeviceTable:
        found = self._tables.get(id(table))
        if found is None:
            found = self._tables[id(table)] = device_table(table, self.keep)
        else:
            follow(found, self.keep)
        return found

    def _device_groups(self, groups: ExpertGroups) -> DeviceGroups:
        """The groups on the device, brought there once for the ops of a layer call."""
        if self._groups is None or self._groups.host is not groups:
            if groups.pair_of.shape[0] == 1:
                self._groups = one_token(groups, self.on_device(groups.expert_ids), self.staging.once)
            else:
                self._groups = upload_groups(groups, self.upload)
        return self._groups

    def _listed(self, which: np.ndarray, groups: DeviceGroups) -> torch.Tensor:
        """A list of groups, which for one token is a list of ranks, of which there are few."""
        return self.staging.once(which) if groups.n_tokens == 1 else self.upload(which)


def _misfit(table: ExpertTable, read: torch.Tensor, written: torch.Tensor) -> ValueError:
    sizes = f"{table.hidden_size} x {table.intermediate_size}"
    return ValueError(f"experts of {sizes} from {tuple(read.shape)} into {tuple(written.shape)}")
