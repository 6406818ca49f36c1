"""The slot table on the device: where kernels find each expert. Entries change on the copying stream, behind the bytes
that they point to.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Sequence

import numpy as np

from kernels.backend import ExpertTable
from kernels.gpu.device_calls import DeviceCalls, Region
from kernels.gpu.timeline import Timeline
from pearl_cli.residency.arena import map_region

_FIELDS = 4  # gate, up, down and one unused, so that an entry is a power of two and one copy
_ENTRY_BYTES = 8 * _FIELDS
_RING = 32  # entries on their way at once before the host waits


class DeviceSlotTable:
    """int64 [num_layers, num_experts, 4] addresses on the device, 0 while never loaded. The entry of an expert that has
    left stays as it was: the host launches nothing for it.
    """

    def __init__(self, calls: DeviceCalls, copies: Timeline, num_layers: int, num_experts: int) -> None:
        self._calls = calls
        self._copies = copies
        self._num_experts = num_experts
        n_bytes = num_layers * num_experts * _ENTRY_BYTES
        self._memory = calls.device_memory(n_bytes)
        self._entries = calls.words(self._memory).reshape(num_layers, num_experts, _FIELDS)
        self._rows = map_region(_RING * _ENTRY_BYTES)  # copies read from here
        calls.pin(self._rows)
        self._marks = [0] * _RING
        self._next = 0
        calls.copy_in(copies.stream, self._memory, 0, map_region(n_bytes))
        copies.synchronize(copies.mark())

    def close(self) -> None:
        """Unlock host memory. Only after the last copy."""
        self._calls.unpin(self._rows)

    def view(self, layer: int, host: ExpertTable) -> ExpertTable:
        """`host` with the addresses on the device in place of those in host memory: int64 [E] views of stride 4."""
        gate, up, down = (self._entries[layer, :, i] for i in range(3))
        return dataclasses.replace(host, gate=gate, up=up, down=down)

    def flip(
        self, layer: int, expert: int, slot: int, addresses: Sequence[int], vouches: Sequence[Region]
    ) -> int:
        """Point the entry to gate, up and down in `slot`, behind all that the copying stream has been given. vouches:
        the bytes that must be there by then. Returns the mark after which kernels may go by it.
        """
        copies, at = self._copies, self._next
        self._next = (at + 1) % _RING
        copies.synchronize(self._marks[at])  # long over, unless the host is a whole ring ahead
        row = self._rows[at * _ENTRY_BYTES : (at + 1) * _ENTRY_BYTES]
        source = Region("slot table rows", at * _ENTRY_BYTES, (at + 1) * _ENTRY_BYTES, (layer, expert))
        self._calls.host_writes(source)
        row.view(np.int64)[:3] = addresses
        offset = (layer * self._num_experts + expert) * _ENTRY_BYTES
        entry = self.entry(layer, expert, slot)
        self._calls.copy_in(copies.stream, self._memory, offset, row, (source, *vouches), (entry,))
        self._marks[at] = copies.mark()
        return self._marks[at]

    def entry(self, layer: int, expert: int, slot: Hashable) -> Region:
        """The entry while it points to `slot`, for race checking."""
        return Region(("slot table", layer, expert), 0, _ENTRY_BYTES, slot)
