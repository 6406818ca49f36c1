"""The whole engine on the GPU path: Triton kernels through the interpreter, streams through the emulation.

It equals the CPU path within a tolerance, and itself bit for bit whatever the budget and the order of completion.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.tolerances import GPU_LOGITS_F32, GPU_LOGITS_QUANTISED

ROOT = Path(__file__).resolve().parents[3]
N_LAYERS, N_NEW = 2, 3
LAUNCHES = ("launch expert_gate_up", "launch expert_down", "launch expert_combine", "launch experts", "launch graph")


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Every case of `emulated_engine`, run once."""
    program = Path(__file__).with_name("emulated_engine.py")
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        [sys.executable, str(program), str(tmp_path_factory.mktemp("models"))],
        capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path}, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def logits(case: dict[str, Any]) -> np.ndarray:
    return np.array(case["logits"])


def relative(case: dict[str, Any], reference: dict[str, Any]) -> float:
    return float(np.abs(logits(case) - logits(reference)).max() / np.abs(logits(reference)).max())


def test_it_ran_there(cases: dict[str, Any]) -> None:
    assert cases["cpu"]["device"] == "cpu"
    assert cases["whole"]["device"] == "emulated"
    assert cases["whole"]["misses"] == 0
    assert cases["15%"]["kept"] < cases["30%"]["kept"] < cases["refused"]["kept"] < cases["whole"]["kept"]
    assert cases["15%"]["misses"] > cases["refused"]["misses"] > 0
    assert cases["fetching"]["prefetch_bytes"] > 0


@pytest.mark.parametrize("name", ["whole", "15%", "psr"])
def test_equal_to_the_cpu_within_tolerance(cases: dict[str, Any], name: str) -> None:
    reference = cases["psr cpu" if name == "psr" else "cpu"]
    assert relative(cases[name], reference) < GPU_LOGITS_F32


@pytest.mark.parametrize("name", ["15%", "30%", "fetching", "refused", "store", "store refused"])
def test_bits_do_not_depend_on_budget_or_order(cases: dict[str, Any], name: str) -> None:
    np.testing.assert_array_equal(logits(cases[name]), logits(cases["whole"]))


def test_steered_routing_does_not_depend_on_order(cases: dict[str, Any]) -> None:
    np.testing.assert_array_equal(logits(cases["psr"]), logits(cases["psr again"]))


def test_misses_on_the_cpu_stay_close(cases: dict[str, Any]) -> None:
    case = cases["misses on cpu"]
    assert case["decode_counts"]["launch upload"] > 0
    assert relative(case, cases["cpu"]) < GPU_LOGITS_F32
    assert any("--miss cpu: an expert is copied in" in note for note in case["notes"])


def test_a_store_in_ram_is_copied_from_where_it_lies(cases: dict[str, Any]) -> None:
    fields = cases["store"]["fields"]
    assert (fields["host_pinned"], fields["host_expert_bytes"], fields["disk_bytes"]) == ("yes", 0, 0)
    assert cases["store"]["misses"] > 0
    assert not any("page-locking" in note for note in cases["store"]["notes"])
    assert cases["store"]["decode_counts"].get("synchronizations", 0) == 0


def test_a_store_that_cannot_be_locked_goes_through_slots(cases: dict[str, Any]) -> None:
    assert cases["store refused"]["fields"]["host_expert_bytes"] > 0
    said = [note for note in cases["store refused"]["notes"] if "of the model in memory is refused" in note]
    assert len(said) == 1


def test_slots_shrink_when_the_device_refuses(cases: dict[str, Any]) -> None:
    assert any("the GPU had no room for 576KiB of expert slots" in note for note in cases["refused"]["notes"])


def test_the_demo_model_runs(cases: dict[str, Any]) -> None:
    """Its Q8_0 weights meet activations of 8 bits on the CPU and of float32 on the GPU."""
    assert relative(cases["demo 30%"], cases["demo cpu"]) < GPU_LOGITS_QUANTISED
    np.testing.assert_array_equal(logits(cases["demo 30%"]), logits(cases["demo 60%"]))
    np.testing.assert_array_equal(
        logits(cases["demo 30%"]).argmax(axis=1), logits(cases["demo cpu"]).argmax(axis=1)
    )


def test_few_launches_a_layer_and_none_that_waits(cases: dict[str, Any]) -> None:
    """Per layer and token one recorded launch (but for the first token at a length), then experts: where the layer
    holds all of them one call, recorded too once their inputs stay where they are, else two launches for those that are
    here, two for those that come, one for the sum.
    """
    for name in ("whole", "15%", "30%", "fetching", "psr"):
        counts = cases[name]["decode_counts"]
        launches = sum(counts.get(launch, 0) for launch in LAUNCHES)
        recorded_experts = N_LAYERS * (N_NEW - 2) if name == "whole" else 0
        assert counts["launch graph"] == N_LAYERS * (N_NEW - 1) + recorded_experts, name
        assert counts["captures"] == (2 * N_LAYERS if name == "whole" else N_LAYERS), name
        assert launches - counts["launch graph"] <= N_LAYERS * N_NEW * 5, name
        assert counts.get("device allocations", 0) == 0, name
        assert counts.get("pins", 0) == 0, name
        assert counts.get("events", 0) == 0, name
        assert counts.get("synchronizations", 0) == 0, name
    assert cases["whole"]["decode_counts"]["launch experts"] == 2 * N_LAYERS


@pytest.mark.parametrize("name", ["tiers 10", "tiers 11", "tiers 12", "tiers 13", "tiers fetching"])
def test_disk_host_memory_and_device_under_two_ceilings(cases: dict[str, Any], name: str) -> None:
    """The race checker watches; what the two tiers lack comes from disk, again and again, and no bit knows."""
    case = cases[name]
    whole, on_device, in_host = case["expert_bytes"], case["fields"]["vram_bytes"] - case["vram_needs"], case["fields"]
    assert 0 < on_device <= whole / 3
    assert 0 < in_host["host_expert_bytes"] <= whole / 2
    assert in_host["host_pinned"] == "yes"
    assert in_host["disk_bytes"] > in_host["host_expert_bytes"]
    assert case["misses"] > 0
    np.testing.assert_array_equal(logits(case), logits(cases["whole, longer"]))


def test_a_token_allocates_nothing(cases: dict[str, Any]) -> None:
    """The first token of a length is launched op by op, the second is recorded, experts of whole layers in the third;
    from then on all memory is there, and what goes to the device is the token's id. Of lists of experts that were never
    seen each goes once, and what the host has chosen itself.
    """
    for name in ("whole, longer", "15%", "30%", "fetching", "store", "psr", "tiers 10"):
        first, second, third, *later = cases[name]["allocations"]
        assert first > 0, name  # it counts
        assert second > 0, name
        assert name.startswith("whole") or third == 0, name
        assert set(later) <= {0}, name
        assert 1 <= cases[name]["uploads"][-1] <= 1 + 5 * N_LAYERS, name
    assert len(cases["whole, longer"]["allocations"]) == 5
    assert cases["whole, longer"]["uploads"][-1] == 1


def test_no_value_is_asked_of_the_device_one_by_one(cases: dict[str, Any]) -> None:
    """No `.item()`, which would wait for the device; and tokens that are replayed cost the same every time. The second
    and third are recorded.
    """
    for name in ("whole", "15%"):
        first, *replayed = cases[name]["torch_ops"]
        assert "_local_scalar_dense" not in {*first, *replayed[0], *replayed[1]}, name
        assert "copy_" in replayed[0], name  # it counts
    assert cases["whole, longer"]["torch_ops"][3] == cases["whole, longer"]["torch_ops"][4]
