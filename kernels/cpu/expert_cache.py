"""One layer's event in few compiled calls: who is recorded, who must leave, and whose slot is to be given back.

What that means is defined, step by step, by `pearl_cli.residency.cache_model.LayerCache`. None of it gives up the
interpreter lock: each takes a microsecond or two, and a reader thread that gets the lock meanwhile keeps it for fifty
to two hundred (2 cores, 128 experts: an event 140 us before, 29 us so).
"""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(cache=True)
def admit(expert_ids, clock, cycle, last_use, use_count, touched_cycle, resident, capacity):
    """Record one event of distinct experts and make them resident; how many must leave for it.

    expert_ids int32 [K]. Mutates last_use, use_count, touched_cycle int64 [E] and resident bool [E].
    """
    missing = 0
    for e in expert_ids:
        last_use[e] = clock
        use_count[e] += 1
        touched_cycle[e] = cycle
        missing += not resident[e]
    if missing == 0:
        return 0
    kept = 0
    for e in expert_ids:
        resident[e] = True
    for e in range(resident.size):
        kept += resident[e]
    return max(0, kept - capacity)


@njit(cache=True)
def evict(keys, expert_ids, excess, resident):
    """The `excess` residents that leave, int64: smallest key first, equal keys by the smaller id, members of the event
    int32 [K] only after all others. Mutates resident bool [E]; keys int64 or float64 [E].
    """
    victims = np.empty(excess, np.int64)
    for e in expert_ids:
        resident[e] = False
    taken = _take_smallest(keys, resident, victims, 0)
    for e in expert_ids:
        resident[e] = True
    _take_smallest(keys, resident, victims, taken)
    return victims


@njit(cache=True)
def _take_smallest(keys, resident, victims, taken):
    """Fill `victims` from place `taken` on as far as there are residents, which leave; how many it holds then."""
    while taken < victims.size:
        smallest = -1
        for e in range(resident.size):
            if resident[e] and (smallest < 0 or keys[e] < keys[smallest]):
                smallest = e
        if smallest < 0:
            break
        resident[smallest] = False
        victims[taken] = smallest
        taken += 1
    return taken


@njit(cache=True)
def strangers(slot_of, keeps, expert_ids):
    """Experts, ascending int64, that hold a slot (slot_of int32 [E] not negative) and are not kept (bool [E]), less
    those of expert_ids int32 [K].
    """
    found = np.empty(slot_of.size, np.int64)
    count = 0
    for e in range(slot_of.size):
        if slot_of[e] >= 0 and not keeps[e]:
            used = False
            for other in expert_ids:
                used |= other == e
            if not used:
                found[count] = e
                count += 1
    return found[:count]
