"""Measure, before a run on a GPU begins, what copying an expert there costs and what computing it on the CPU does."""

from __future__ import annotations

import numpy as np

from kernels.backend import Activations, Backend, ExpertTable
from kernels.grouping import group_by_expert
from pearl_cli.device.device_side import DeviceSide
from pearl_cli.device.miss_rule import MissRule, measure
from pearl_cli.residency.arena import map_region
from pearl_cli.residency.build import ExpertPlaces
from pearl_cli.residency.placement import Place

_MANY_TOKENS = 16


def measure_misses(
    side: DeviceSide, places: ExpertPlaces, shape: tuple[int, int], cpu: Backend, always: bool
) -> MissRule:
    """On one expert of zeros, laid out as the model's first; the slots of `side` must be empty. shape: (hidden_size,
    intermediate_size).
    """
    triple = next(triples[0] for triples in places.places if triples)
    n_bytes = triple[-1].slot_offset + triple[-1].read_bytes
    memory = map_region(n_bytes)
    side.calls.pin(memory)
    table = _table(triple, memory.ctypes.data, shape)

    def copy() -> None:
        for place in triple:
            begin = place.slot_offset + place.lead
            part = memory[begin : begin + place.n_bytes]
            side.calls.copy_in(side.copies.stream, side.arena.memory, begin, part)
        side.copies.synchronize(side.copies.mark())

    def compute(n_tokens: int) -> None:
        groups = group_by_expert(np.zeros((n_tokens, 1), np.int32))
        which = np.zeros(1, np.int32)
        h, d = cpu.pair_buffers(n_tokens, shape[1], shape[0])
        a = Activations(np.zeros((n_tokens, shape[0]), np.float32))
        cpu.expert_gate_up(a, table, groups, which, h)
        cpu.expert_down(h, table, groups, which, d)

    try:
        return measure(copy, compute, _MANY_TOKENS, always)
    finally:
        side.calls.unpin(memory)


def _table(triple: tuple[Place, ...], base: int, shape: tuple[int, int]) -> ExpertTable:
    at = [np.array([base + place.slot_offset + place.lead], np.int64) for place in triple]
    types = [np.array([int(place.quant_type)], np.uint8) for place in triple]
    return ExpertTable(at[0], at[1], at[2], types[0], types[1], types[2], *shape)
