"""The kernel bench: what it prints, that it counts bytes, and that a wrong kernel is never timed."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import pytest

from kernels.backend import Activations, Array, Weight
from kernels.bench import __main__ as bench
from kernels.bench import memory_rate, ops
from kernels.bench.blocks import BLOCK_TYPES, random_blocks
from kernels.bench.shapes import SHAPES, Shape
from kernels.cpu.backend import CpuBackend
from kernels.quant_types import QuantType, row_bytes
from kernels.reference.dequant import dequantize_rows

TINY = Shape("tiny", 256, 4, 2, 64, 128, 4, 2, 300)


class WrongBackend(CpuBackend):
    """A backend whose linear layers read a wrong first column of x."""

    def linear(self, a: Activations, *weights: Weight, bias: Array | None = None) -> Array:
        x = a.x.copy()
        x[:, 0] += 4
        return super().linear(Activations(x), *weights, bias=bias)


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """One tiny shape, little memory read, short runs."""
    monkeypatch.setattr(ops, "COLD_BYTES", 1 << 16)
    monkeypatch.setattr(ops, "DEPTH", 70)
    monkeypatch.setattr(bench, "SHAPES", {"tiny": TINY})
    monkeypatch.setattr(bench, "measure", lambda n_threads: 1e9)


def run(*argv: str) -> int:
    return bench.main(["--seconds", "0", "--threads", "1", *argv])


def test_every_op_runs_and_agrees_with_the_reference(tiny: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--json", "--type", "q8_0", "--type", "F32", "--type", "Q4_0") == 0
    captured = capsys.readouterr()
    results = json.loads(captured.out)
    assert {r["op"] for r in results} == set(ops.OPS)
    assert all(r["ok"] and r["ms"] > 0 and r["gb_s"] > 0 for r in results)
    assert {"gflop_s" in r for r in results if r["op"].endswith("-512")} == {True}
    assert "NOT TIMED" not in captured.err


def test_bytes_are_those_of_the_weights_read(tiny: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--json", "--op", "qkv", "--op", "experts", "--type", "Q8_0") == 0
    qkv, experts = json.loads(capsys.readouterr().out)
    assert qkv["n_bytes"] == (4 + 2 * 2) * 64 * row_bytes(QuantType.Q8_0, 256)
    assert experts["n_bytes"] == 2 * (2 * 128 * row_bytes(QuantType.Q8_0, 256) + 256 * row_bytes(QuantType.Q8_0, 128))
    assert qkv["gb_s"] == pytest.approx(qkv["n_bytes"] / qkv["ms"] / 1e6)
    assert qkv["percent_of_read"] == pytest.approx(100 * qkv["gb_s"])


def test_a_wrong_kernel_is_not_timed(
    tiny: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "CpuBackend", WrongBackend)
    assert run("--op", "qkv", "--op", "route", "--type", "F32") == 1
    lines = capsys.readouterr().out.splitlines()
    assert "NOT TIMED: RMS error" in next(line for line in lines if line.startswith("qkv"))
    assert "NOT TIMED" not in next(line for line in lines if line.startswith("route"))


@pytest.mark.parametrize("argv", [["--op", "nosuch"], ["--type", "Q9_9"], ["--threads", "0"]])
def test_bad_arguments_are_a_usage_error(argv: Sequence[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        bench.main(argv)
    assert stopped.value.code == 2
    assert argv[1] in capsys.readouterr().err


def test_a_type_that_does_not_divide_the_shape_is_left_out() -> None:
    assert not ops.fits(TINY, QuantType.Q4_K)
    assert ops.fits(SHAPES["qwen3-30b-a3b"], QuantType.Q4_K)


def test_memory_rate_is_a_rate() -> None:
    assert 1e8 < memory_rate.measure(2, n_bytes=8 << 20, repeats=2) < 1e13


@pytest.mark.parametrize("quant_type", BLOCK_TYPES, ids=lambda t: t.name)
def test_random_blocks_are_finite_and_vary(quant_type: QuantType) -> None:
    data = random_blocks(np.random.default_rng(0), quant_type, 6, 512)
    floats = dequantize_rows(data, quant_type, 512)
    assert np.isfinite(floats).all()
    assert 0.05 < floats.std() < 20
    assert len(np.unique(floats)) > 2
