"""A dense feed-forward as a layer of one expert: its table and groups, so that it runs the expert kernels."""

from __future__ import annotations

import numpy as np
import torch

from kernels.backend import ExpertGroups, ExpertTable, GatedUnit, Weight
from kernels.gpu.expert_calls import DeviceGroups, DeviceTable, Upload, device_table, upload_groups


class DenseTables:
    """Tables by all that they say, groups by the number of tokens; both are kept."""

    def __init__(self, upload: Upload) -> None:
        self._upload = upload
        self._tables: dict[tuple[object, ...], DeviceTable] = {}
        self._groups: dict[int, DeviceGroups] = {}
        self._all: torch.Tensor | None = None

    def of(self, gate: Weight, up: Weight, unit: GatedUnit) -> DeviceTable:
        """The table whose one expert is `gate` and `up`; its down is never read."""
        at = (gate.data.data_ptr(), up.data.data_ptr())
        key = (*at, gate.quant_type, up.quant_type, gate.n_cols, gate.n_rows, unit)
        if key not in self._tables:
            places = [np.array([address], np.int64) for address in (*at, 0)]
            types = [np.array([int(w.quant_type)], np.uint8) for w in (gate, up, gate)]
            sizes = gate.n_cols, gate.n_rows
            table = ExpertTable(places[0], places[1], places[2], types[0], types[1], types[2], *sizes, unit)
            self._tables[key] = device_table(table, self._upload)
        return self._tables[key]

    def all_groups(self) -> torch.Tensor:
        """int32 [1] on the device: the list of the one group."""
        if self._all is None:
            self._all = self._upload(np.zeros(1, np.int32))
        return self._all

    def groups(self, n_tokens: int) -> DeviceGroups:
        """All tokens to that expert."""
        if n_tokens not in self._groups:
            tokens = np.arange(n_tokens, dtype=np.int32)
            one = ExpertGroups(np.zeros(1, np.int32), np.array([0, n_tokens], np.int32), tokens, tokens.reshape(-1, 1))
            self._groups[n_tokens] = upload_groups(one, self._upload)
        return self._groups[n_tokens]
