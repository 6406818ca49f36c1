"""Opening a run on a GPU: what does not fit there is a plan's fault, in one line."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from models.errors import MemoryPlanError
from pearl_cli.device.open_device import DevicePlan, room_on_device
from pearl_cli.device.vram_plan import VramNeeds


class Full(Exception):
    """What a library raises."""


def a_plan() -> DevicePlan:
    needs = VramNeeds(weight_bytes=3 << 20, kv_bytes=5 << 20, workspace_bytes=0, context=8)
    return DevicePlan(SimpleNamespace(out_of_memory=(Full,)), SimpleNamespace(needs=needs.fixed), None, 0)


def test_weights_and_cache_that_do_not_fit() -> None:
    with (
        pytest.raises(MemoryPlanError, match="no room for weights of 3MiB and a KV cache of 5MiB; close other"),
        room_on_device(a_plan()),
    ):
        raise Full


def test_other_faults_stay_what_they_are() -> None:
    with pytest.raises(ZeroDivisionError), room_on_device(a_plan()):
        raise ZeroDivisionError
    with pytest.raises(Full), room_on_device(None):
        raise Full
