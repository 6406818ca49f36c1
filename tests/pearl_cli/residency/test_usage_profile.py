"""A profile survives sessions, loads the hottest experts first, and never changes a result."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from models.errors import UsageError
from pearl_cli.main import run
from pearl_cli.open_engine import open_engine
from pearl_cli.options import RunOptions
from pearl_cli.residency.usage_profile import load_profile, profile_places, save_profile
from pearl_cli.sizes import Size
from tests.tiny_gguf import tiny_moe

OPTIONS = RunOptions(threads=1, ctx_size=32, budget=Size(percent=40))


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tiny_moe().write(tmp_path / "tiny.gguf")


def stored(tmp_path: Path, model: Path) -> np.ndarray | None:
    return load_profile(cached(tmp_path, model), model.stat().st_size, (2, 8))


def cached(tmp_path: Path, model: Path) -> Path:
    return profile_places(model, model.stat().st_size, tmp_path / "cache" / "pearl", beside=False)[0]


def test_the_next_session_starts_warm_and_computes_the_same(tmp_path: Path, model: Path) -> None:
    prompt = [5, 6, 7, 8]
    with open_engine(model, OPTIONS, use_profile=True) as cold:
        first = cold.engine.prefill(prompt)
        assert cold.controller.totals.misses > 0
        used = [state.cache.history.use_count.copy() for state in cold.controller.layers if state is not None]
    counts = stored(tmp_path, model)
    np.testing.assert_array_equal(counts, used)
    with open_engine(model, OPTIONS, use_profile=True) as warm:
        for state, row in zip(warm.controller.layers, used, strict=True):
            assert state is not None
            here = np.flatnonzero(state.slot_of >= 0)
            assert here.size == state.cache.capacity
            assert row[here].min() >= np.delete(row, here).max()
        np.testing.assert_array_equal(warm.engine.prefill(prompt), first)
        assert warm.controller.totals.misses < cold.controller.totals.misses
    merged = stored(tmp_path, model)
    np.testing.assert_array_equal(merged, 1.5 * np.array(used))  # the same uses again, plus half of the earlier ones


def test_without_the_flag_nothing_is_read_or_written(tmp_path: Path, model: Path) -> None:
    with open_engine(model, OPTIONS) as opened:
        opened.engine.prefill([1, 2, 3])
    assert stored(tmp_path, model) is None
    assert not list((tmp_path / "cache").glob("**/*.npz"))


def test_static_needs_a_profile_and_pins_by_it(tmp_path: Path, model: Path) -> None:
    options = RunOptions(threads=1, ctx_size=32, budget=Size(percent=40), evict="static")
    with pytest.raises(UsageError, match="usage profile"):
        open_engine(model, options)
    counts = np.tile(np.arange(8.0), (2, 1))
    save_profile(cached(tmp_path, model), counts, None, model.stat().st_size)
    with open_engine(model, options, use_profile=True) as opened:
        state = opened.controller.layers[0]
        assert state is not None
        expected = list(range(8 - state.cache.capacity, 8))
        assert np.flatnonzero(state.slot_of >= 0).tolist() == expected


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 no archive", b"\x93NUMPY"])
def test_a_damaged_profile_is_no_profile(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "usage.npz"
    path.write_bytes(content)
    assert load_profile(path, 100, (2, 8)) is None


def test_a_profile_of_another_shape_or_with_nonsense_is_none(tmp_path: Path) -> None:
    path = tmp_path / "usage.npz"
    save_profile(path, np.ones((2, 8)), None, 100)
    assert load_profile(path, 100, (2, 9)) is None
    assert load_profile(path, 100, (2, 8)) is not None
    assert load_profile(path, 101, (2, 8)) is None
    save_profile(path, np.full((2, 8), np.nan), None, 100)
    assert load_profile(path, 100, (2, 8)) is None


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path, model: Path) -> None:
    said: list[str] = []
    with open_engine(model, OPTIONS, notify=said.append, use_profile=True) as opened:
        opened.engine.prefill([1, 2])
        (tmp_path / "cache" / "pearl").rmdir()
    assert len(said) == 1
    assert "usage profile could not be saved: No such file" in said[0]


def test_the_profile_lies_beside_the_model(tmp_path: Path, model: Path) -> None:
    options = dataclasses.replace(OPTIONS, model=model)
    with open_engine(model, options, use_profile=True) as opened:
        opened.engine.prefill([5, 6, 7])
    assert (tmp_path / "tiny.usage.npz").is_file()
    assert stored(tmp_path, model) is None
    with open_engine(model, options, use_profile=True) as opened:
        assert any((state.slot_of >= 0).any() for state in opened.controller.layers if state is not None)


def test_where_the_models_folder_cannot_be_written_it_lies_in_the_cache(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside = tmp_path / "tiny.usage.npz"
    beside.mkdir()  # a name that no file can take, whoever runs the test
    said: list[str] = []
    options = dataclasses.replace(OPTIONS, model=model)
    for _ in range(2):
        with open_engine(model, options, notify=said.append, use_profile=True) as opened:
            warm = any((state.slot_of >= 0).any() for state in opened.controller.layers if state is not None)
            opened.engine.prefill([5, 6, 7])
    assert warm
    assert not said
    assert stored(tmp_path, model) is not None
    assert [path.name for path in tmp_path.glob("*.partial")] == []


def test_a_set_of_shards_has_one_profile_and_the_shipped_model_none_beside_it(tmp_path: Path) -> None:
    first, last = (tmp_path / f"big-0000{n}-of-00002.gguf" for n in (1, 2))
    assert profile_places(first, 9, None)[0] == profile_places(last, 9, None)[0] == tmp_path / "big.usage.npz"
    assert profile_places(first, 9, None, beside=False) == []


def test_no_profile_neither_reads_nor_writes(tmp_path: Path, model: Path) -> None:
    arguments = ["complete", "-m", str(model), "-p", "a", "-n", "2", "-c", "32", "-t", "1", "--budget", "40%"]
    assert run([*arguments, "--no-profile"]) == 0
    assert not (tmp_path / "tiny.usage.npz").exists()
    assert run(arguments) == 0
    assert (tmp_path / "tiny.usage.npz").exists()
