"""Opening a run on a GPU: what does not fit there is a plan's fault, in one line."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from kernels.gpu.emulated_calls import EmulatedCalls
from models.config import ModelConfig
from models.errors import MemoryPlanError
from models.expert_store import ExpertStore
from models.gguf import GGUFModel
from pearl_cli.device.open_device import DevicePlan, plan_device, room_on_device
from pearl_cli.device.vram_plan import VramNeeds
from pearl_cli.options import RunOptions
from pearl_cli.residency.build import ExpertPlaces
from pearl_cli.sizes import Size
from tests.tiny_gguf import tiny_moe


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


def test_a_ceiling_below_the_floor_is_told_what_would_work(tmp_path: Path) -> None:
    gpu = SimpleNamespace(calls=EmulatedCalls(device_bytes=1 << 34))
    with GGUFModel.open(tiny_moe().write(tmp_path / "tiny.gguf")) as gguf:
        config = ModelConfig.from_gguf(gguf)
        places = ExpertPlaces.of(ExpertStore(gguf, config))

        def plan(options: RunOptions) -> DevicePlan:
            return plan_device(gpu, gguf, config, places, options, None, 0, None, None)  # type: ignore[arg-type]

        with pytest.raises(MemoryPlanError, match=r"--vram 1MiB is below the floor of \d+MiB") as told:
            plan(RunOptions(vram=Size(n_bytes=1 << 20)))
        least = re.search(r"; with -ub 64 it needs --vram (\d+)MiB$", str(told.value))
        assert least is not None, told.value
        vram = Size(n_bytes=int(least[1]) << 20)
        plan(RunOptions(vram=vram, ubatch_size=64))
