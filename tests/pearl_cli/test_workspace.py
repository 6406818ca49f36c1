"""The workspace that a plan counts of a prompt's tokens is what runs take, of every architecture: no less, and not much
more.

Measured is what numpy and Python ask for while a prompt goes through in chunks of two lengths. What a token takes is
the difference, so that all that is there once falls out.
"""

from __future__ import annotations

import gc
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from pearl_cli.open_engine import open_engine
from pearl_cli.options import RunOptions
from pearl_cli.workspace import workspace_bytes
from tests.tiny_gguf import tiny_moe
from tests.tiny_models import FAMILIES, tiny_model, write_gguf

SHORT, LONG, PROMPT = 32, 96, 192
LEAST_USED_QUANTISED = 0.7  # of what is planned; the rest is the allocator's eighth, and forms that these types spare
LEAST_USED_FLOAT = 0.55  # where weights are not quantised, no row is


def bytes_a_token(path: Path, **options: object) -> tuple[float, float]:
    """(taken, planned), by several chunks: what experts take stays from the first on."""
    run = RunOptions(threads=1, ctx_size=PROMPT + 8, ubatch_size=LONG, **options)  # type: ignore[arg-type]
    ids = np.random.default_rng(0).integers(3, 90, PROMPT).tolist()
    peaks = []
    with open_engine(path, run) as opened:
        engine, config = opened.engine, opened.config
        tracemalloc.start(1)
        try:
            for chunk in (SHORT, SHORT, LONG):  # the first time much is made that stays
                engine.reset()
                engine.chunk_tokens = chunk
                gc.collect()
                tracemalloc.reset_peak()
                engine.prefill(ids)
                peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    taken, planned = peaks[2] - peaks[1], workspace_bytes(config, LONG) - workspace_bytes(config, SHORT)
    return taken / (LONG - SHORT), planned / (LONG - SHORT)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_architecture_takes_what_is_planned(family: str, tmp_path: Path) -> None:
    taken, planned = bytes_a_token(write_gguf(tiny_model(family), tmp_path / "model.gguf", family))
    assert LEAST_USED_FLOAT * planned <= taken <= planned


@pytest.mark.parametrize("quant", ["q4_k", "q8_0"])
def test_quantised_rows_are_counted(quant: str, tmp_path: Path) -> None:
    model = tiny_moe(hidden=256, expert_width=256, num_experts_per_tok=3, num_kv_heads=4)
    model.metadata["olmoe.context_length"] = 256
    taken, planned = bytes_a_token(model.write(tmp_path / "model.gguf"), quant=quant)
    assert LEAST_USED_QUANTISED * planned <= taken <= planned
