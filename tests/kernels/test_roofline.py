"""The floors of GPU launches: bytes and operations by hand, and the command that prints them."""

from __future__ import annotations

import json

import pytest

from kernels.bench import __main__ as bench
from kernels.bench.roofline import GPUS, Gpu, Launch, experts_used, floor_us, launches
from kernels.bench.shapes import SHAPES, Shape
from kernels.quant_types import QuantType

TINY = Shape("tiny", 256, 4, 2, 64, 512, 8, 2, 1000)


def test_the_floor_is_the_larger_of_both() -> None:
    gpu = Gpu("x", 1000, 10, 100)
    assert floor_us(Launch("a", 1_000_000, 0), gpu) == pytest.approx(1.0)
    assert floor_us(Launch("a", 1_000_000, 40_000_000), gpu) == pytest.approx(4.0)
    assert floor_us(Launch("a", 1_000_000, 400_000_000, True), gpu) == pytest.approx(4.0)


def test_one_token_reads_its_experts_and_the_cache_once() -> None:
    found = {launch.op: launch for launch in launches(TINY, QuantType.Q4_K, 1, 100)}
    assert found["q, k and v"].n_bytes == 512 * 144 + 4 * (512 + 256)
    assert found["experts, gate and up"].n_bytes == 2 * 2 * 512 * 144 + 4 * 256 + 4 * 2 * 512
    assert found["experts, gate and up"].n_flops == 2 * 2 * 2 * 512 * 256
    assert found["experts, down and sum"].n_bytes == 2 * 256 * 2 * 144 + 4 * 2 * 512 + 4 * 256
    assert found["attention"].n_bytes == 2 * 100 * 2 * 2 * 64 + 2 * 4 * 256
    assert found["router matrix"].n_bytes == 8 * 256 * 4 + 4 * (8 + 256)
    assert not found["router matrix"].on_tensor_units


def test_many_tokens_use_tensor_units_and_see_half_of_their_own_square() -> None:
    found = {launch.op: launch for launch in launches(TINY, QuantType.Q4_K, 10, 10)}
    assert found["attention"].n_flops == 8 * (10 * 11 // 2) * 256
    assert found["q, k and v"].on_tensor_units
    assert not found["router matrix"].on_tensor_units
    assert "experts, down and sum" not in found


def test_experts_used_by_random_choice() -> None:
    assert experts_used(TINY, 1) == pytest.approx(2)
    assert experts_used(TINY, 1000) == pytest.approx(8)


def test_the_command_prints_every_launch_and_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(["--roofline", "--shape", "qwen3-30b-a3b", "--type", "Q8_0"]) == 0
    text = capsys.readouterr().out
    assert all(gpu.name in text for gpu in GPUS)
    assert "experts, down and sum" in text
    assert bench.main(["--roofline", "--json"]) == 0
    records = json.loads(capsys.readouterr().out)
    assert {r["shape"] for r in records} == set(SHAPES)
    assert all(set(r["floor_us"]) == {gpu.name for gpu in GPUS} for r in records)


def test_an_op_does_not_go_with_the_floors(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        bench.main(["--roofline", "--op", "qkv"])
    assert "--op does not apply" in capsys.readouterr().err
