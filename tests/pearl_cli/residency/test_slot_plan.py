"""A budget in bytes becomes slots: exact sums, even split, floor, size classes, places in a slot."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels.quant_types import QuantType
from models.expert_store import Chunk
from pearl_cli.residency.arena import SlotArena
from pearl_cli.residency.placement import PAGE, mergeable, place_expert
from pearl_cli.residency.slot_plan import floor_bytes, full_bytes, plan_slots, size_classes


def test_even_split_with_the_remainder_to_the_first_layers() -> None:
    plan = plan_slots([PAGE] * 4, num_experts=8, budget_bytes=(2 + 3 * 4 + 2) * PAGE)
    assert plan.capacities == (4, 4, 3, 3)
    assert (plan.staging, plan.classes) == (2, ((PAGE, 16),))


def test_everything_fits_without_staging() -> None:
    plan = plan_slots([PAGE, 0, PAGE], num_experts=8, budget_bytes=16 * PAGE)
    assert (plan.capacities, plan.staging, plan.n_bytes) == ((8, 0, 8), 0, 16 * PAGE)
    assert plan.class_of_layer == (0, -1, 0)


def test_floor_is_two_slots_a_size() -> None:
    sizes = [PAGE, 3 * PAGE, PAGE]
    assert floor_bytes(sizes) == 8 * PAGE
    assert plan_slots(sizes, 8, 8 * PAGE).capacities == (0, 0, 0)
    with pytest.raises(ValueError, match="below the floor"):
        plan_slots(sizes, 8, 8 * PAGE - 1)


def test_at_most_four_sizes_with_the_least_waste() -> None:
    assert size_classes([10, 20, 30, 40, 41, 0]) == [10, 20, 30, 41]


@given(
    sizes=st.lists(st.sampled_from([0, 1, 2, 3, 7, 8, 20, 21]), min_size=1, max_size=12).filter(any),
    num_experts=st.integers(1, 40),
    share=st.floats(0, 1.2),
    prefetch=st.integers(0, 8),
)
def test_a_plan_never_exceeds_its_budget(sizes: list[int], num_experts: int, share: float, prefetch: int) -> None:
    sizes = [size * PAGE for size in sizes]
    low, high = floor_bytes(sizes), full_bytes(sizes, num_experts)
    budget = int(low + share * max(0, high - low))
    plan = plan_slots(sizes, num_experts, budget, prefetch)
    assert plan.n_bytes <= budget
    assert plan.num_slots == sum(plan.capacities) + plan.staging * len(plan.classes)
    for need, index, capacity in zip(sizes, plan.class_of_layer, plan.capacities, strict=True):
        assert 0 <= capacity <= num_experts
        assert (index == -1) == (need == 0)
        assert index == -1 or plan.classes[index][0] >= need
    assert plan.staging >= 2 or all(c == num_experts for c, need in zip(plan.capacities, sizes, strict=True) if need)


def test_chunks_inside_pages_are_read_from_the_page_border() -> None:
    chunks = [Chunk(*where, QuantType.F32) for where in ((0, 4096 * 3 + 96, 5000), (0, 50_000, 32), (1, 8192, 4096))]
    places, slot_bytes = place_expert(chunks)
    assert [(p.file_offset, p.read_bytes, p.slot_offset, p.lead, p.needed_bytes) for p in places] == [
        (4096 * 3, 8192, 0, 96, 5096),
        (49_152, 4096, 8192, 848, 880),
        (8192, 4096, 12_288, 0, 4096),
    ]
    assert slot_bytes == 16_384


def test_only_page_neighbours_of_one_file_merge() -> None:
    def expert(*chunks: tuple[int, int, int]) -> list[bool]:
        places, _ = place_expert([Chunk(f, offset, n, QuantType.F32) for f, offset, n in chunks])
        return [mergeable(places[0], places[1]), mergeable(places[1], places[2])]

    assert expert((0, 4096, 4000), (0, 8192, 4096), (0, 12_288, 9)) == [True, True]
    assert expert((0, 4096, 4000), (1, 8192, 4096), (1, 12_288, 9)) == [False, True]
    assert expert((0, 4128, 4096), (0, 8224, 4096), (0, 12_320, 4096)) == [False, False]  # the border page is in both


def test_arena_hands_out_each_slot_once() -> None:
    arena = SlotArena([(PAGE, 3), (2 * PAGE, 1)])
    taken = [arena.take(0) for _ in range(4)]
    assert sorted(taken) == [-1, 0, 1, 2]
    assert (arena.take(1), arena.take(1)) == (3, -1)
    spans = sorted((address, address + len(view)) for address, view in zip(arena.addresses, arena.views, strict=True))
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))
    assert all(start % PAGE == 0 for start, _ in spans)
    arena.release(1)
    assert arena.take(0) == 1
    arena.reset_free({0, 3})
    assert (arena.num_free(0), arena.num_free(1)) == (2, 0)


def test_arena_refuses_sizes_that_break_direct_reads() -> None:
    with pytest.raises(ValueError, match="multiples of 4096"):
        SlotArena([(PAGE + 32, 2)])
