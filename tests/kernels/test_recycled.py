"""Recycled rows are nobody else's: whoever holds one, or a view of one, keeps it."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from kernels.cpu.recycled import KEPT, MAX_SHAPES, Recycled, copy_of, new_rows


@pytest.fixture
def floats() -> Recycled:
    return Recycled(np.float32)


def address(array: np.ndarray) -> int:
    return int(array.ctypes.data)


def test_what_nobody_holds_is_handed_out_again(floats: Recycled) -> None:
    first = floats.take(1, 300)
    place = address(first)
    assert (first.shape, first.dtype, first.flags.c_contiguous) == ((1, 300), np.float32, True)
    del first
    assert address(floats.take(1, 300)) == place
    assert address(floats.take(1, 300)) == place


def test_what_somebody_holds_is_not(floats: Recycled) -> None:
    held = [floats.take(1, 300) for _ in range(3 * KEPT)]
    assert len({address(array) for array in held}) == len(held)
    for i, array in enumerate(held):
        array.fill(i)
    for _ in range(10):
        floats.take(1, 300).fill(-1)
    assert [float(array[0, 0]) for array in held] == list(range(len(held)))
    assert len(floats._pools[1, 300]) == KEPT


@pytest.mark.parametrize("view_of", [
    lambda array: array[:, 5:9], lambda array: array.reshape(30, 10)[3], lambda array: memoryview(array),
    lambda array: array.view(np.uint8)[0, ::2], lambda array: [array],
])  # fmt: skip
def test_views_hold_it(floats: Recycled, view_of: object) -> None:
    array = floats.take(1, 300)
    place, view = address(array), view_of(array)  # type: ignore[operator]
    del array
    assert all(address(floats.take(1, 300)) != place for _ in range(2 * KEPT))
    del view
    assert place in {address(floats.take(1, 300)) for _ in range(KEPT)}


def test_threads_never_share_one(floats: Recycled) -> None:
    start = threading.Barrier(4)

    def work(own: int) -> int:
        start.wait()
        clashes = 0
        for _ in range(3000):
            array = floats.take(1, 64)
            array.fill(own)
            other = floats.take(1, 64)
            other.fill(own + 100)
            clashes += int((array != own).any()) + int((other != own + 100).any())
        return clashes

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(work, range(4))) == 0


def test_shapes_that_change_all_the_time_do_not_pile_up(floats: Recycled) -> None:
    for width in range(1, MAX_SHAPES + 50):
        floats.take(1, width)
    assert len(floats._pools) <= MAX_SHAPES
    floats.clear()
    assert not floats._pools


def test_rows_of_prompts_are_fresh() -> None:
    one, many = new_rows(1, 96), new_rows(3, 96)
    assert (one.shape, many.shape) == ((1, 96), (3, 96))
    rows = np.arange(20, dtype=np.float32).reshape(2, 10)[:, 2:7]
    for part in (rows, rows[:1]):
        copy = copy_of(part)
        np.testing.assert_array_equal(copy, part)
        assert copy.flags.c_contiguous
        assert not np.shares_memory(copy, part)
