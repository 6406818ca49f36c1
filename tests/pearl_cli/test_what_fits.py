"""What is advised under a ceiling that is too low fits when it is typed, and is the mildest change that does."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from models.errors import MemoryPlanError, UsageError
from pearl_cli.commands.plan import command as plan_command
from pearl_cli.memory_plan import MIB, FixedNeeds, MemoryPlan, plan_memory
from pearl_cli.options import RunOptions
from pearl_cli.sizes import Size
from pearl_cli.what_fits import what_fits
from tests.tiny_gguf import tiny_moe

SLOTS = 2 * MIB  # the least, of one layer of experts of 1 MiB
FIXED = FixedNeeds(10 * MIB, 20 * MIB, 0, 0, context=4096).total_bytes


def planner(types: tuple[str, ...] = ("f16", "q8_0")) -> Callable[[RunOptions], MemoryPlan]:
    """A model whose KV cache takes 32 KiB a token, 17 with q8_0, and its workspace 64 KiB a token of a chunk."""

    def plan(options: RunOptions) -> MemoryPlan:
        if options.cache_type_k not in types:
            raise UsageError("no such type here")
        context = options.ctx_size or 4096
        kv = context * (17 if options.cache_type_k == "q8_0" else 32) * 1024
        workspace = min(options.ubatch_size, context) * 64 * 1024
        needs = FixedNeeds(10 * MIB, 20 * MIB, kv, workspace, context)
        assert options.ram is not None
        return plan_memory(needs, [MIB], 16, options.ram.n_bytes, options.budget)

    return plan


@pytest.mark.parametrize(
    ("room_mib", "advice"),
    [
        (104, "; -ctk q8_0 -ctv q8_0 would fit"),  # 68 for the cache, 32 for the chunk
        (99, "; -c 2048 would fit"),
        (80, "; -c 1280 would fit"),  # 1536 leave 48 for cache and chunk, and nothing for a process that weighs more
        (66, "; -c 1024 would fit"),
        (60, "; -c 512 would fit"),
        (25, "; -c 256 would fit"),
        (22, "; -c 256 -ctk q8_0 -ctv q8_0 would fit"),
        (9, "; -c 256 -ctk q8_0 -ctv q8_0 -ub 64 would fit"),
    ],
)
def test_the_mildest_change_that_fits_is_named(room_mib: int, advice: str) -> None:
    options = RunOptions(ram=Size(n_bytes=FIXED + SLOTS + room_mib * MIB))
    with pytest.raises(MemoryPlanError):
        planner()(options)
    assert what_fits(planner(), options, 4096) == advice


def test_a_type_that_the_model_cannot_store_is_passed_over() -> None:
    options = RunOptions(ram=Size(n_bytes=FIXED + SLOTS + 104 * MIB))
    assert what_fits(planner(("f16",)), options, 4096) == "; -c 2048 would fit"


def test_where_nothing_fits_the_least_ceiling_is_named_and_works() -> None:
    options = RunOptions(ram=Size(n_bytes=20 * MIB))
    advice = what_fits(planner(), options, 4096)
    found = re.fullmatch(r"; with -c 256 -ctk q8_0 -ctv q8_0 -ub 64 it needs --ram (\d+)MiB", advice)
    assert found is not None, advice
    ram = Size(n_bytes=int(found[1]) * MIB)
    planner()(RunOptions(ram=ram, ctx_size=256, cache_type_k="q8_0", cache_type_v="q8_0", ubatch_size=64))


def test_a_budget_below_its_floor_is_not_the_contexts_fault() -> None:
    options = RunOptions(ram=Size(n_bytes=1 << 30), budget=Size(n_bytes=1000))
    with pytest.raises(MemoryPlanError, match="--budget 2MiB or more, or leave it out"):
        planner()(options)
    assert what_fits(planner(), options, 4096) == ""


def test_a_budget_that_does_not_fit_is_told_what_does() -> None:
    room = 5 * MIB
    options = RunOptions(ram=Size(n_bytes=FIXED + 160 * MIB + room), budget=Size(n_bytes=14 * MIB))
    with pytest.raises(MemoryPlanError, match="give --budget 5MiB or more --ram"):
        planner()(options)
    assert what_fits(planner(), options, 4096) == "; -ctk q8_0 -ctv q8_0 would fit"


def test_a_command_says_it(tmp_path: Path) -> None:
    model = tiny_moe().write(tmp_path / "tiny.gguf")
    done = CliRunner().invoke(plan_command, [str(model), "--ram", "40MiB", "-t", "1"])
    assert isinstance(done.exception, MemoryPlanError)
    assert re.search(r"below the floor of \d+MiB .*; with .*-ub 64 it needs --ram \d+MiB$", str(done.exception))
