"""Slots for each layer, chosen from recorded routing: as many to each as make the fewest misses together.

The misses that a layer of c slots would have had are counted once for every c, for eviction by recency, by the rules of
`cache_model`; a knapsack over the layers then finds the best sum. Pure arithmetic, and the same answer every time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pearl_cli.trace import RouteTrace

_MAX_UNITS = 1 << 16  # of the knapsack; finer sizes are rounded up to fit


@dataclass(frozen=True, slots=True)
class Split:
    """misses: int64 [L, E + 1], of layer l with c slots; least: slots that every layer gets first."""

    misses: np.ndarray
    least: int

    @classmethod
    def of_trace(cls, trace: RouteTrace) -> Split:
        """least: the experts of one token, so that no layer evicts what it has just read."""
        return cls(miss_curves(trace), trace.num_experts_per_tok)


def miss_curves(trace: RouteTrace) -> np.ndarray:
    """int64 [L, E + 1]: lookups that miss with 0, 1, .. E slots. Exact for LRU from `num_experts_per_tok` slots on.

    An expert is still there if fewer than c others were used after it; of one event's, smaller ids leave first.
    """
    n_experts = trace.num_experts
    last_use = np.full((trace.num_layers, n_experts), -1, np.int64)
    found_at = np.zeros((trace.num_layers, n_experts + 1), np.int64)  # [l, r]: lookups of the r-th most recent
    ids = np.arange(n_experts)
    for clock, event in enumerate(trace.events(token_by_token=True), 1):
        row, members = last_use[event.layer], event.expert_ids
        age_order = row * n_experts + ids
        rank = (age_order > age_order[members][:, None]).sum(axis=1)
        rank[row[members] < 0] = n_experts
        np.add.at(found_at[event.layer], rank, 1)
        row[members] = clock
    hits = np.cumsum(found_at[:, :n_experts], axis=1)
    misses = np.repeat(found_at.sum(axis=1, keepdims=True), n_experts + 1, axis=1)
    misses[:, 1:] -= hits
    return misses


def split_slots(split: Split, layer_slot_bytes: Sequence[int], total_bytes: int) -> list[int]:
    """Slots of each layer, 0 for one without experts (slot bytes 0). What is left over goes to the smallest shares.

    Raises ValueError where `total_bytes` cannot give every layer its least.
    """
    n_experts = split.misses.shape[1] - 1
    needs = [need for need in layer_slot_bytes if need]
    least_bytes = split.least * sum(needs)
    if least_bytes > total_bytes:
        raise ValueError(f"{total_bytes} bytes do not give each layer {split.least} slots; that takes {least_bytes}")
    unit = max(math.gcd(*needs), -(-total_bytes // _MAX_UNITS))
    layers = [layer for layer, need in enumerate(layer_slot_bytes) if need]
    weights = [-(-layer_slot_bytes[layer] // unit) for layer in layers]
    if split.least * sum(weights) > total_bytes // unit:  # too coarse for so tight a budget
        chosen = [split.least] * len(layers)
    else:
        chosen = _knapsack(split.misses[layers], weights, total_bytes // unit, split.least)
    slots = [0] * len(layer_slot_bytes)
    for layer, count in zip(layers, chosen, strict=True):
        slots[layer] = count
    left = total_bytes - sum(count * need for count, need in zip(slots, layer_slot_bytes, strict=True))
    while True:
        open_layers = [i for i in layers if slots[i] < n_experts and layer_slot_bytes[i] <= left]
        if not open_layers:
            return slots
        smallest = min(open_layers, key=lambda layer: slots[layer])
        slots[smallest] += 1
        left -= layer_slot_bytes[smallest]


def _knapsack(misses: np.ndarray, weights: list[int], room: int, least: int) -> list[int]:
    """Slots a layer, `least` to E, of least misses in all while their weights fit `room`; ties to fewer slots."""
    n_layers, n_experts = misses.shape[0], misses.shape[1] - 1
    best = np.zeros(room + 1, np.int64)  # of the layers so far, within so much room
    picks = np.zeros((n_layers, room + 1), np.int32)
    infinite = np.iinfo(np.int64).max // 4
    for layer in range(n_layers):
        total = np.full(room + 1, infinite, np.int64)
        for count in range(least, n_experts + 1):
            used = count * weights[layer]
            if used > room:
                break
            candidate = best[: room + 1 - used] + misses[layer, count]
            better = candidate < total[used:]
            total[used:][better] = candidate[better]
            picks[layer, used:][better] = count
        best = total
    chosen, left = [0] * n_layers, room
    for layer in range(n_layers - 1, -1, -1):
        chosen[layer] = int(picks[layer, left])
        left -= chosen[layer] * weights[layer]
    return chosen
