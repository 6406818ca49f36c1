"""The plan's arithmetic, its refusals with a floor that works when typed, and the ceiling kept by a real process."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from models.errors import MemoryPlanError, UsageError
from pearl_cli.host_memory import _cgroup_headrooms, available_bytes, peak_rss_bytes, rss_bytes
from pearl_cli.memory_plan import MIB, FixedNeeds, choose_context, plan_memory, typed
from pearl_cli.sizes import Size, parse_size
from tests.tiny_gguf import tiny_moe

NEEDS = FixedNeeds(100 * MIB, 200 * MIB, 50 * MIB, 30 * MIB, context=4096)
SLOT = 1 * MIB  # a whole number of pages
LAYERS = [SLOT] * 4


def test_everything_fits() -> None:
    plan = plan_memory(NEEDS, LAYERS, 16, ceiling_bytes=1024 * MIB)
    assert plan.all_resident
    assert plan.slots.capacities == (16,) * 4
    assert plan.total_bytes == NEEDS.total_bytes + 64 * MIB


def test_slots_get_what_the_ceiling_leaves() -> None:
    ceiling = NEEDS.total_bytes + 34 * MIB
    plan = plan_memory(NEEDS, LAYERS, 16, ceiling)
    assert plan.slots.capacities == (8,) * 4
    assert plan.total_bytes == ceiling
    assert not plan.all_resident


def test_the_named_floor_works_when_typed() -> None:
    with pytest.raises(MemoryPlanError) as refused:
        plan_memory(NEEDS, LAYERS, 16, 300 * MIB)
    message = str(refused.value)
    assert message.startswith("--ram 300MiB is below the floor of ")
    for part in ("process 100MiB", "weights 200MiB", "KV cache 50MiB for 4096 tokens", "expert slots 2MiB"):
        assert part in message
    floor = parse_size(re.search(r"floor of (\S+)", message)[1]).n_bytes  # type: ignore[index]
    plan = plan_memory(NEEDS, LAYERS, 16, floor)
    assert plan.total_bytes <= floor
    with pytest.raises(MemoryPlanError):
        plan_memory(NEEDS, LAYERS, 16, plan.floor_bytes - 1)


def test_a_peak_already_reached_counts() -> None:
    needs = FixedNeeds(100 * MIB, 200 * MIB, 50 * MIB, 30 * MIB, context=4096, peak_bytes=900 * MIB)
    with pytest.raises(MemoryPlanError, match="floor of 908MiB"):
        plan_memory(needs, LAYERS, 16, 800 * MIB)


def test_without_a_ceiling_the_message_speaks_of_this_machine() -> None:
    with pytest.raises(MemoryPlanError, match=r"needs at least \d+MiB .* and 300MiB may be used here"):
        plan_memory(NEEDS, LAYERS, 16, 300 * MIB, ceiling_is_asked=False)


def test_budget_in_bytes_and_percent() -> None:
    assert plan_memory(NEEDS, LAYERS, 16, 1024 * MIB, Size(n_bytes=10 * MIB)).slots.n_bytes == 10 * MIB
    assert plan_memory(NEEDS, LAYERS, 16, 1024 * MIB, Size(percent=50)).slots.n_bytes == 32 * MIB
    assert plan_memory(NEEDS, LAYERS, 16, 1024 * MIB, Size(percent=100)).all_resident
    assert plan_memory(NEEDS, LAYERS, 16, 1024 * MIB, Size(n_bytes=999 * MIB)).all_resident


def test_budget_below_the_floor_or_above_the_ceiling() -> None:
    with pytest.raises(MemoryPlanError, match="--budget 1MiB is below the floor of 2MiB"):
        plan_memory(NEEDS, LAYERS, 16, 1024 * MIB, Size(n_bytes=MIB))
    with pytest.raises(MemoryPlanError, match=r"--budget 60MiB does not fit: .* leave 34MiB for experts"):
        plan_memory(NEEDS, LAYERS, 16, NEEDS.total_bytes + 34 * MIB, Size(n_bytes=60 * MIB))


@pytest.mark.parametrize(
    ("asked", "trained", "context"), [(None, 131072, 4096), (None, 512, 512), (0, 131072, 131072), (99, 512, 99)]
)
def test_context(asked: int | None, trained: int, context: int) -> None:
    assert choose_context(asked, trained) == context


def test_context_beyond_training_is_refused() -> None:
    with pytest.raises(UsageError, match="trained for 512 tokens"):
        choose_context(513, 512)


@pytest.mark.parametrize(
    ("n_bytes", "text"), [(MIB, "1MiB"), (MIB + 1, "2MiB"), (5000, "5KiB"), (3 * 1024 * MIB, "3072MiB")]
)
def test_typed_sizes_parse_back(n_bytes: int, text: str) -> None:
    assert typed(n_bytes) == text
    assert parse_size(text).n_bytes >= n_bytes


def test_cgroup_limits_of_all_parents_count(tmp_path: Path) -> None:
    inner = tmp_path / "box" / "job"
    inner.mkdir(parents=True)
    for folder, limit, use in ((tmp_path / "box", "1000000", "400000"), (inner, "max", "300000")):
        (folder / "memory.max").write_text(limit + "\n")
        (folder / "memory.current").write_text(use + "\n")
    (tmp_path / "box" / "memory.stat").write_text("anon 5\ninactive_file 100000\n")
    (tmp_path / "cgroup").write_text("0::/box/job\n")
    assert _cgroup_headrooms(tmp_path, tmp_path / "cgroup") == [700000]


def test_own_figures_are_plausible() -> None:
    assert MIB < rss_bytes() <= peak_rss_bytes() + MIB
    assert available_bytes() > 0


_CHILD = """
import json, sys
import numpy as np
from pathlib import Path
from pearl_cli.host_memory import peak_rss_bytes
from pearl_cli.open_engine import open_engine
from pearl_cli.options import RunOptions
from pearl_cli.sizes import Size

ceiling = int(sys.argv[2])
with open_engine(Path(sys.argv[1]), RunOptions(threads=1, ram=Size(n_bytes=ceiling) if ceiling else None)) as opened:
    rng = np.random.default_rng(0)
    opened.engine.prefill(rng.integers(0, 259, 100).tolist())
    logits = [opened.engine.decode_step(int(rng.integers(0, 259))) for _ in range(12)]
peak = peak_rss_bytes()
plan = opened.plan
print(json.dumps({"peak": peak, "fixed": plan.needs.total_bytes, "slots": plan.slots.n_bytes, "floor": plan.floor_bytes,
                  "full": plan.expert_slot_bytes_total, "misses": opened.controller.totals.misses,
                  "sums": [float(row.astype(np.float64).sum()) for row in logits]}))
"""


def _run_child(model: Path, ceiling: int) -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, "-c", _CHILD, str(model), str(ceiling)],
        capture_output=True, text=True, cwd=Path(__file__).resolve().parents[2],
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


@pytest.mark.skipif(sys.platform != "linux", reason="peak RSS is read from Linux's own counter")
def test_a_process_stays_under_its_ceiling(tmp_path: Path) -> None:
    """A model of 108 MiB of experts, all resident and then under a ceiling that leaves room for a third of them."""
    model = tiny_moe(num_layers=4, num_experts=24, hidden=256, expert_width=384).write(tmp_path / "model.gguf")
    free = _run_child(model, 0)
    assert free["misses"] == 0
    ceiling = int(free["fixed"]) + int(free["full"]) // 3  # type: ignore[call-overload]
    bound = _run_child(model, ceiling)
    assert int(bound["misses"]) > 0  # type: ignore[call-overload]
    assert int(bound["peak"]) <= ceiling  # type: ignore[call-overload]
    assert int(free["peak"]) > ceiling  # type: ignore[call-overload]
    assert bound["sums"] == free["sums"]
