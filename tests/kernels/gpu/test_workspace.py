"""Memory that is handed out again token after token, and small arrays that go to the device once."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kernels.backend import RouterSpec
from kernels.gpu import staging as staging_module
from kernels.gpu import workspace as workspace_module
from kernels.gpu.backend import GpuBackend
from kernels.gpu.staging import Staging
from kernels.gpu.tiling import DECODE_TOKENS
from kernels.gpu.workspace import Fresh, Workspace

CPU = torch.device("cpu")


def test_a_call_is_given_what_the_last_one_was() -> None:
    memory = Workspace(CPU)
    first = [memory.take((1, 8)), memory.take((1, 8)), memory.take((1, 8), torch.int32), memory.take((2, 8))]
    assert len({tensor.data_ptr() for tensor in first}) == 4
    memory.restart()
    again = [memory.take((1, 8)), memory.take((1, 8)), memory.take((1, 8), torch.int32), memory.take((2, 8))]
    assert all(one is other for one, other in zip(first, again, strict=True))


def test_prompts_and_endless_calls_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workspace_module, "_MOST_KEPT", 3)
    memory = Workspace(CPU)
    rows = DECODE_TOKENS + 1
    first = [memory.take((rows, 4)), *(memory.take((1, 4)) for _ in range(5))]
    memory.restart()
    again = [memory.take((rows, 4)), *(memory.take((1, 4)) for _ in range(5))]
    assert [one is other for one, other in zip(first, again, strict=True)] == [False, True, True, True, False, False]


def test_arrays_that_come_again_go_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """When one half of their memory is full the other is filled, so that what was just given stays as it is."""
    monkeypatch.setattr(staging_module, "_REMEMBERED", 64)
    staging = Staging(CPU)
    arrays = [np.array([i, i + 1, i + 2], np.int32) for i in range(16)]
    given = [staging.once(array) for array in arrays]
    assert staging.uploads == 16
    assert staging.once(arrays[0].copy()) is given[0]
    assert staging.once(arrays[0].reshape(1, 3)) is not given[0]  # the half is full: this goes to the other
    assert staging.uploads == 17
    for array, tensor in zip(arrays, given, strict=True):
        np.testing.assert_array_equal(tensor.numpy(), array)
    large = np.arange(20, dtype=np.int32)
    np.testing.assert_array_equal(staging.once(large).numpy(), large)


def test_an_upload_is_a_copy() -> None:
    staging, array = Staging(CPU), np.arange(6, dtype=np.int32).reshape(2, 3)
    sent = staging.upload(array, Fresh(CPU))
    array[:] = 0
    assert sent.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert staging.upload(np.zeros((0, 2), np.int32), Fresh(CPU)).shape == (0, 2)


def test_the_routers_answer_is_not_sent_back(gpu: GpuBackend) -> None:
    """Nor can the host's copy be changed, which the device would not see; other arrays of the same numbers are sent."""
    logits = torch.from_numpy(np.random.default_rng(1).standard_normal((1, 16)).astype(np.float32))
    ids, weights = gpu.route(logits, RouterSpec(16, 4))
    before = gpu.staging.uploads
    np.testing.assert_array_equal(gpu.on_device(ids[0]).numpy(), ids[0])
    np.testing.assert_array_equal(gpu.on_device(weights).numpy(), weights)
    assert gpu.staging.uploads == before
    with pytest.raises(ValueError, match="read-only"):
        weights *= 2
    np.testing.assert_array_equal(gpu.on_device(2 * weights).numpy(), 2 * weights)
    np.testing.assert_array_equal(gpu.on_device(ids[0, :2]).numpy(), ids[0, :2])
    assert gpu.staging.uploads == before + 2
