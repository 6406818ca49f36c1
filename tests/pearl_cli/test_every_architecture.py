"""Every architecture streams its experts through small slots with the bits of the resident run, and routes by the
logical cache with the same bits whenever its reads come.
"""

from __future__ import annotations

import random
import time
from pathlib import Path

import numpy as np
import pytest

from kernels.cpu.backend import CpuBackend
from models.expert_store import ExpertStore
from models.gguf import GGUFModel
from models.loader import load_model
from models.resident import ResidentExperts
from pearl_cli.engine import Engine
from pearl_cli.open_engine import open_engine
from pearl_cli.options import RunOptions
from pearl_cli.residency.disk_reader import DiskReader
from pearl_cli.sizes import Size
from tests.tiny_models import FAMILIES, prompt, tiny_model, write_gguf

STREAMED = list(FAMILIES)
STEERED = list(FAMILIES)
PROMPT, FORCED = prompt(13).tolist(), prompt(12, seed=2).tolist()
EXACT = RunOptions(threads=1, ctx_size=64, budget=Size(percent=40), ubatch_size=5)
PSR = RunOptions(
    threads=1, ctx_size=64, routing="psr", lambda_="0.5", inserts=1, residency=Size(percent=40), evict="lru",
    budget=Size(percent=60), ubatch_size=5,
)  # fmt: skip


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A stock file of each family, made when a test first asks for it."""

    class Made(dict[str, Path]):
        def __missing__(self, family: str) -> Path:
            path = tmp_path_factory.mktemp("family") / "model.gguf"
            self[family] = write_gguf(tiny_model(family), path, family)
            return self[family]

    return Made()


def rows_of(engine: Engine) -> np.ndarray:
    """Logits after the prompt and after each forced token."""
    rows = [engine.prefill(PROMPT).copy()]
    rows += [engine.decode_step(token).copy() for token in FORCED]
    return np.stack(rows)


def run(path: Path, options: RunOptions) -> np.ndarray:
    with open_engine(path, options) as opened:
        return rows_of(opened.engine)


@pytest.mark.parametrize("family", STREAMED)
def test_streamed_equals_resident_bit_for_bit(family: str, paths: dict[str, Path]) -> None:
    backend = CpuBackend(1)
    with GGUFModel.open(paths[family]) as gguf:
        model = load_model(gguf, backend)
        experts = ResidentExperts(model, ExpertStore(gguf, model.config), backend)
        resident = rows_of(Engine(model, model.new_cache(64), experts, EXACT.ubatch_size))
    with open_engine(paths[family], EXACT) as opened:
        assert not opened.plan.all_resident
        np.testing.assert_array_equal(rows_of(opened.engine), resident)
        assert opened.controller.totals.miss_bytes > 0


@pytest.mark.parametrize("family", STEERED)
def test_steered_routing_has_the_same_bits_at_any_speed_of_reads(
    family: str, paths: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    fast, plain, draw = run(paths[family], PSR), DiskReader.read, random.Random(1)

    def slow(reader: DiskReader, file_index: int, offset: int, out: memoryview, needed_bytes: int) -> None:
        time.sleep(draw.random() * 1e-3)
        plain(reader, file_index, offset, out, needed_bytes)

    monkeypatch.setattr(DiskReader, "read", slow)
    np.testing.assert_array_equal(run(paths[family], PSR), fast)
    assert (fast != run(paths[family], EXACT)).any(), "no choice was steered"
