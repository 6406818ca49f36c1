"""`--vram` is kept; drivers that lie or say nothing are survived; slots shrink until the device takes them."""

from __future__ import annotations

import itertools
import re

import pytest

from kernels.gpu.emulated_calls import EmulatedCalls
from models.errors import MemoryPlanError
from pearl_cli.device.vram_plan import CONTEXT_BYTES, VramNeeds, plan_host, plan_vram, smaller
from pearl_cli.memory_plan import MIB, RESERVE_BYTES
from pearl_cli.sizes import Size

NEEDS = VramNeeds(weight_bytes=100 * MIB, kv_bytes=20 * MIB, workspace_bytes=30 * MIB, context=512)
FIXED = CONTEXT_BYTES + 150 * MIB + RESERVE_BYTES
LAYERS = [MIB] * 4  # 4 layers of 16 experts of 1 MiB: 64 MiB in all, and a floor of 2
FULL = 64 * MIB


def plan(calls: EmulatedCalls, asked_bytes: int | None = None, notes: list[str] | None = None):
    asked = Size(n_bytes=asked_bytes) if asked_bytes is not None else None
    return plan_vram(calls, NEEDS, LAYERS, 16, asked, notify=None if notes is None else notes.append)


def test_slots_get_what_weights_cache_and_workspace_leave() -> None:
    made = plan(EmulatedCalls(), FIXED + 20 * MIB)
    assert made.total_bytes <= FIXED + 20 * MIB
    assert made.slots.n_bytes == 20 * MIB
    assert plan(EmulatedCalls(), FIXED + 2 * FULL).all_resident


def test_below_the_floor_it_names_the_flag_and_the_floor() -> None:
    with pytest.raises(MemoryPlanError, match=r"--vram \d+MiB is below the floor of \d+MiB"):
        plan(EmulatedCalls(), FIXED)


@pytest.mark.parametrize(
    ("told", "said", "is_floor"),
    [
        (1 << 34, "", False),  # a plain answer
        (-1, "does not say how much GPU memory is free", True),
        (0, "the driver says 0 of GPU memory are free", True),
        (1 << 50, "", False),  # more than there is
    ],
)
def test_what_the_driver_says_is_not_the_last_word(told: int, said: str, is_floor: bool) -> None:
    notes: list[str] = []
    made = plan(EmulatedCalls(device_bytes=1 << 35, free_bytes_told=told), notes=notes)
    assert made.slots.n_bytes == (2 * MIB if is_floor else FULL)
    assert [said in note for note in notes] == ([True] if said else [])


def test_shrinking_ends_at_the_floor_with_a_message() -> None:
    made = plan(EmulatedCalls(), FIXED + 50 * MIB)
    sizes = [made.slots.n_bytes]
    while sizes[-1] > 2 * MIB:
        made = smaller(made, LAYERS, 16, prefetch_slots=0)
        sizes.append(made.slots.n_bytes)
    assert sizes == sorted(set(sizes), reverse=True)
    assert all(after >= 0.85 * before - MIB for before, after in itertools.pairwise(sizes))
    assert sizes[-1] == 2 * MIB
    with pytest.raises(MemoryPlanError, match=r"no room for the 2MiB of expert slots"):
        smaller(made, LAYERS, 16, prefetch_slots=0)


def test_host_slots_under_the_ceiling_of_the_process() -> None:
    def host(ceiling_bytes: int, asked: bool = True):
        return plan_host(LAYERS, 16, 500 * MIB, 40 * MIB, 1000 * MIB, ceiling_bytes, asked)

    whole, part = host(2000 * MIB), host(640 * MIB)
    assert sum(size * count for size, count in whole.classes) == FULL
    assert 2 * MIB <= sum(size * count for size, count in part.classes) <= 640 * MIB - 500 * MIB
    assert whole.lock_limit_bytes == 850 * MIB
    with pytest.raises(MemoryPlanError, match=r"--ram 620MiB is below the floor of \d+MiB on a GPU .* 40MiB") as told:
        host(620 * MIB)
    advised = re.search(r"; give --ram (\d+)MiB or more; a file converted to a smaller type", str(told.value))
    assert advised is not None
    host(int(advised[1]) * MIB)
    with pytest.raises(MemoryPlanError, match=rf"the 620MiB of RAM .* programs, or give --ram {advised[1]}MiB if"):
        host(620 * MIB, asked=False)
