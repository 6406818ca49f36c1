"""Rows of q and k in llama.cpp's order for its `llama` architecture: the very lists for heads of 8 rows, there and
back, and the scores that come of them. Heads of 4 would prove nothing: there the order is its own inverse.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from convert.pipeline import ConvertOptions, convert
from convert.rows import FileRows, OpenFile, RopePermuted
from kernels.quant_types import QuantType
from kernels.reference.rope import rope_ref
from models.config import ModelConfig
from models.gguf import GGUFModel
from models.rope import build_rope_table
from tests.convert.checkpoints import HEAD_DIM, HEADS, HIDDEN, config, weights, write_folder

ORDER, INVERSE = [0, 4, 1, 5, 2, 6, 3, 7], [0, 2, 4, 6, 1, 3, 5, 7]
KV_HEADS, POSITIONS = 2, 6
N_HEADS = {"q": HEADS, "k": KV_HEADS}


def converted(folder: Path, tensors: dict[str, np.ndarray], architecture: str) -> GGUFModel:
    source = write_folder(folder / "hf", tensors, config(architecture))
    return GGUFModel.open(convert(source, folder / "out", ConvertOptions(quant="f32", with_vocab=False)))


def rows_of(n_heads: int, order: list[int]) -> np.ndarray:
    """`order` within each head."""
    return (np.arange(n_heads)[:, None] * HEAD_DIM + np.array(order)).reshape(-1)


def half_turned(x: np.ndarray, angles: np.ndarray) -> np.ndarray:
    """Hugging Face's rotation of x [T, heads, 8]: components i and i + 4 are a pair; angles [T, 4]."""
    cos, sin = (np.concatenate([f(angles)] * 2, axis=-1)[:, None] for f in (np.cos, np.sin))
    turned = np.concatenate([-x[..., HEAD_DIM // 2 :], x[..., : HEAD_DIM // 2]], axis=-1)
    return x * cos + turned * sin


def scores(q: np.ndarray, k: np.ndarray) -> np.ndarray:
    """[heads, T, T] of rotated q and k [T, heads * 8]; each key head serves two query heads."""
    queries, keys = (rows.reshape(len(rows), -1, HEAD_DIM) for rows in (q, k))
    return np.einsum("thd,shd->hts", queries, np.repeat(keys, HEADS // KV_HEADS, axis=1))


def test_the_order_of_eight_rows_and_its_inverse(tmp_path: Path) -> None:
    (tmp_path / "rows").write_bytes(np.arange(8, dtype="<f4").tobytes())
    rows = RopePermuted(FileRows(OpenFile(tmp_path / "rows"), 0, 8, 1, QuantType.F32), head_dim=8).floats(0, 8)[:, 0]
    assert rows.tolist() == ORDER
    assert rows[INVERSE].tolist() == list(range(8))
    assert np.argsort(ORDER).tolist() == INVERSE != ORDER


@pytest.mark.parametrize(("architecture", "order"), [("llama", ORDER), ("olmoe", range(8)), ("qwen3moe", range(8))])
def test_numbered_rows_go_by_head_with_as_many_heads_as_k_has(
    architecture: str, order: list[int], tmp_path: Path
) -> None:
    tensors = weights(architecture)
    for which, n_heads in N_HEADS.items():
        numbered = np.repeat(np.arange(n_heads * HEAD_DIM, dtype=np.float32)[:, None], HIDDEN, axis=1)
        tensors[f"model.layers.0.self_attn.{which}_proj.weight"] = numbered
    model = converted(tmp_path, tensors, architecture)
    for which, n_heads in N_HEADS.items():
        found = model.array(f"blk.0.attn_{which}.weight")[:, 0]
        assert found.tolist() == rows_of(n_heads, list(order)).tolist()
        if architecture == "llama":
            assert found[rows_of(n_heads, INVERSE)].tolist() == list(range(n_heads * HEAD_DIM))


@pytest.mark.parametrize("architecture", ["llama", "olmoe"])
def test_scores_of_six_positions_are_those_of_hugging_face(architecture: str, tmp_path: Path) -> None:
    """Where rows are not brought into the order that the rotation wants, position 0 alone would still be right."""
    tensors = weights(architecture)
    model = converted(tmp_path, tensors, architecture)
    rope = ModelConfig.from_gguf(model).rope
    x = np.random.default_rng(1).standard_normal((POSITIONS, HIDDEN))
    angles = np.arange(POSITIONS)[:, None] * rope.theta ** -(np.arange(0, HEAD_DIM, 2) / HEAD_DIM)
    source = {which: tensors[f"model.layers.1.self_attn.{which}_proj.weight"] for which in N_HEADS}
    expected = scores(*(half_turned((x @ w.T).reshape(POSITIONS, -1, HEAD_DIM), angles) for w in source.values()))

    def by_pearl(matrices: list[np.ndarray]) -> np.ndarray:
        table = build_rope_table(rope, POSITIONS)
        return scores(*(rope_ref(x @ w.T, table, 0, HEAD_DIM) for w in matrices))

    found = by_pearl([np.asarray(model.array(f"blk.1.attn_{which}.weight")) for which in N_HEADS])
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-4)
    wrong = by_pearl([w[rows_of(len(w) // HEAD_DIM, INVERSE if rope.interleaved else ORDER)] for w in source.values()])
    np.testing.assert_allclose(wrong[:, 0, 0], expected[:, 0, 0], rtol=1e-5, atol=1e-4)
    assert abs(wrong - expected)[:, 1:].max() > 1.0
