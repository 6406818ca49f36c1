"""Router ids come to the host, and small arrays go to the device, through page-locked memory; the host waits for one
event at most. torch.cuda has a stand-in, and the device is one that holds no numbers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from kernels.gpu.mailbox import Mailbox
from kernels.gpu.staging import _SLOT_BYTES, _SLOTS, Staging
from kernels.gpu.workspace import Fresh


class FakeEvent:
    log: list[str]

    def record(self) -> None:
        self.log.append("record")

    def synchronize(self) -> None:
        self.log.append("wait")


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Page-locked allocations and uses of events, in order; memory is the host's."""
    FakeEvent.log = log = []
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    empty = torch.empty

    def pinned(*args: Any, pin_memory: bool = False, **kwargs: Any) -> torch.Tensor:
        if pin_memory:
            log.append("pin")
        return empty(*args, **kwargs)

    monkeypatch.setattr(torch, "empty", pinned)
    return log


def test_several_answers_come_behind_one_event(log: list[str]) -> None:
    mailbox = Mailbox(torch.device("cuda"))
    ids, weights = torch.arange(6, dtype=torch.int32).reshape(2, 3), torch.rand(2, 3)
    found = mailbox.fetch([ids, weights])
    assert log == ["pin", "record", "wait"]
    np.testing.assert_array_equal(found[0], ids.numpy())
    np.testing.assert_array_equal(found[1], weights.numpy())
    mailbox.fetch([ids + 1, weights])
    assert log == ["pin", "record", "wait", "record", "wait"]
    np.testing.assert_array_equal(found[0], ids.numpy())  # an answer stays when the next one comes


def test_uploads_wait_only_for_the_buffer_that_they_take(log: list[str]) -> None:
    staging, memory = Staging(torch.device("meta")), Fresh(torch.device("meta"))
    assert log == ["pin"] * _SLOTS
    log.clear()
    array = np.arange(5, dtype=np.int32)
    out = staging.upload(array, memory)
    assert (out.shape, out.dtype, out.device.type) == ((5,), torch.int32, "meta")
    assert log == ["wait", "record"]
    assert staging._buffers[0][: array.nbytes].view(torch.int32).tolist() == array.tolist()
    for _ in range(_SLOTS):
        staging.upload(array + 7, memory)
    assert staging._buffers[0][: array.nbytes].view(torch.int32).tolist() == (array + 7).tolist()
    log.clear()
    assert staging.upload(np.zeros(_SLOT_BYTES + 1, np.uint8), memory).nbytes == _SLOT_BYTES + 1
    assert log == []
