"""What the flags mean: names, files, the forecast beside the model, and every refusal."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from models.errors import FileError, UsageError
from models.gguf import GGUFModel
from pearl_cli.open_engine import open_engine
from pearl_cli.options import RunOptions
from pearl_cli.predict.choose import choose_forecasting, forecast_beside
from pearl_cli.predict.fingerprint import model_fingerprint
from pearl_cli.predict.predictor_file import save_predictor
from pearl_cli.residency.auto.auto_forecasts import Stage
from pearl_cli.sizes import Size
from tests.pearl_cli.predict.forecast_files import random_predictor
from tests.tiny_gguf import tiny_moe


@pytest.fixture
def model_path(tmp_path: Path) -> Path:
    return tiny_moe("qwen3moe", num_layers=3).write(tmp_path / "tiny.gguf")


@pytest.fixture
def model(model_path: Path) -> Iterator[GGUFModel]:
    with GGUFModel.open(model_path) as gguf:
        yield gguf


def save_for(gguf: GGUFModel, path: Path, kind: str = "horizon-mlp", fingerprint: str | None = None) -> Path:
    metadata = gguf.metadata
    card, arrays = random_predictor(
        kind, fingerprint=fingerprint or model_fingerprint(gguf), layers=(0, 1, 2),
        num_experts=metadata["qwen3moe.expert_count"], num_experts_per_tok=metadata["qwen3moe.expert_used_count"],
        hidden_size=metadata["qwen3moe.embedding_length"],
    )  # fmt: skip
    save_predictor(path, card, arrays)
    return path


def test_none_costs_nothing_and_auto_without_a_file_is_none(model: GGUFModel) -> None:
    for name in ("none", "auto"):
        chosen = choose_forecasting(model, name, 1, "auto")
        assert (chosen.name, chosen.fetch, chosen.evict) == ("none", False, "lfru")
        assert chosen.next_use(None) is None  # type: ignore[arg-type]


def test_the_forecast_beside_the_model_is_taken(model: GGUFModel, tmp_path: Path) -> None:
    save_for(model, tmp_path / "tiny.forecast.gguf")
    chosen = choose_forecasting(model, "auto", 1, "auto")
    assert (chosen.name, chosen.fetch, chosen.evict) == ("horizon-mlp", False, "pearl")
    assert choose_forecasting(model, "auto", 1, "lru").evict == "lru"
    assert choose_forecasting(model, "none", 1, "auto").evict == "lfru"


@pytest.mark.parametrize("predictor", ["next-gate", "token-table", "ema"])
def test_an_untrained_predictor_fetches_and_the_forecast_beside_evicts(
    model: GGUFModel, model_path: Path, tmp_path: Path, predictor: str
) -> None:
    save_for(model, tmp_path / "tiny.forecast.gguf")
    chosen = choose_forecasting(model, predictor, 1, "auto")
    assert (chosen.name, chosen.fetch, chosen.evict) == (predictor, True, "pearl")
    assert choose_forecasting(model, predictor, 1, "lru").card is None
    options = RunOptions(threads=1, ctx_size=32, budget=Size(percent=50), predictor=predictor)
    with open_engine(model_path, options) as opened:
        prefetcher, next_use = opened.controller._prefetcher, opened.controller._next_use
    assert prefetcher is not None
    assert next_use is not None
    assert (prefetcher._predictor.name, next_use.name) == (predictor, "horizon-mlp")


@pytest.mark.parametrize(
    ("predictor", "evict", "percent", "found_out"),
    [
        ("auto", "auto", 45, (True, True)),
        ("auto", "lru", 45, (True, False)),
        ("auto", "pearl", 45, (True, False)),
        ("auto", "auto", 100, (False, False)),
        ("none", "auto", 45, (False, False)),
        ("next-gate", "auto", 45, (False, False)),
    ],
)
def test_only_auto_finds_out_what_pays_and_only_of_what_was_not_asked_for(
    model: GGUFModel, model_path: Path, tmp_path: Path, predictor: str, evict: str, percent: int,
    found_out: tuple[bool, bool],
) -> None:  # fmt: skip
    save_for(model, tmp_path / "tiny.forecast.gguf")
    options = RunOptions(threads=1, ctx_size=32, budget=Size(percent=percent), predictor=predictor, evict=evict)
    with open_engine(model_path, options) as opened:
        auto = opened.controller.auto
        assert (auto is not None, auto is not None and auto._choices.forecaster is not None) == found_out
        if percent == 100:
            assert opened.controller._prefetcher is None  # all resident: there is nothing that could cost
    off = dataclasses.replace(options, switched_off=("auto",))
    with open_engine(model_path, off) as opened:
        assert opened.controller.auto is None


def test_auto_changes_no_bit_through_all_its_stages(
    model: GGUFModel, model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # so that fetching is tried, whatever the forecasts are worth on the machine at work
    monkeypatch.setattr("pearl_cli.residency.auto.auto_forecasts.pays_to_fetch", lambda measured: True)
    save_for(model, tmp_path / "tiny.forecast.gguf")
    plain = RunOptions(threads=1, ctx_size=128, ubatch_size=4)
    limited = dataclasses.replace(plain, budget=Size(percent=45), throttle=Size(n_bytes=20 << 20), io_threads=2)
    with open_engine(model_path, plain) as resident, open_engine(model_path, limited) as opened:
        auto, stages = opened.controller.auto, set()
        assert auto is not None
        prompt = [3, 1, 4, 1, 5, 9, 2]
        for index, token in enumerate(np.random.default_rng(0).integers(3, 200, 600).tolist()):
            if index % 100 == 0:
                opened.engine.reset()
                resident.engine.reset()
                np.testing.assert_array_equal(opened.engine.prefill(prompt), resident.engine.prefill(prompt))
            np.testing.assert_array_equal(opened.engine.decode_step(token), resident.engine.decode_step(token))
            stages.add(auto.stage.name)
            if auto.stage is Stage.SETTLED:
                break
        assert stages == {"WAIT", "WATCH", "TRY", "SETTLED"}


def test_its_name_leaves_out_the_shard_number(tmp_path: Path) -> None:
    (tmp_path / "m-q4.forecast.gguf").touch()
    assert forecast_beside(tmp_path / "m-q4-00002-of-00003.gguf") == tmp_path / "m-q4.forecast.gguf"
    assert forecast_beside(tmp_path / "other.gguf") is None


def test_a_predictor_of_another_model(model: GGUFModel, tmp_path: Path) -> None:
    """Named: refused. Only lying there: said, and not used."""
    path = save_for(model, tmp_path / "tiny.forecast.gguf", fingerprint="0" * 32)
    with pytest.raises(FileError, match=r"^--predictor .*trained for another model \(tiny\)"):
        choose_forecasting(model, str(path), 1, "auto")
    notes: list[str] = []
    assert choose_forecasting(model, "auto", 1, "auto", notes.append).evict == "lfru"
    assert "trained for another model" in notes[0]


@pytest.mark.parametrize("predictor", ["next-gate", "token-table", "ema"])
def test_untrained_ones_fetch_and_pearl_goes_by_frequency(model: GGUFModel, predictor: str) -> None:
    chosen = choose_forecasting(model, predictor, 2, "pearl")
    assert (chosen.name, chosen.fetch, chosen.evict, chosen.stride) == (predictor, True, "pearl", 2)


@pytest.mark.parametrize(
    ("predictor", "evict", "message"),
    [
        ("none", "pearl", "goes by a forecast"),
        ("gut-feeling", "auto", "no name of a predictor"),
        ("oracle:2", "auto", "oracle:"),
    ],
)
def test_refusals(model: GGUFModel, predictor: str, evict: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        choose_forecasting(model, predictor, 1, evict)


def test_the_oracle_needs_recorded_routing(model_path: Path) -> None:
    with pytest.raises(UsageError, match="recorded routing only"):
        open_engine(model_path, RunOptions(threads=1, ctx_size=64, predictor="oracle:0.8"))


@pytest.mark.parametrize("kind", ["horizon-mlp", "trajectory", "mlp", "next-gate", "token-table", "ema"])
@pytest.mark.parametrize("evict", ["pearl", "lru"])
def test_no_forecast_changes_a_bit(model: GGUFModel, model_path: Path, tmp_path: Path, kind: str, evict: str) -> None:
    trained = kind in ("horizon-mlp", "trajectory", "mlp")
    predictor = str(save_for(model, tmp_path / "p.gguf", kind)) if trained else kind
    plain = RunOptions(threads=1, ctx_size=64, ubatch_size=4)
    forecast = dataclasses.replace(plain, budget=Size(percent=45), predictor=predictor, evict=evict, io_threads=2)
    with open_engine(model_path, plain) as resident, open_engine(model_path, forecast) as opened:
        assert (opened.evict, opened.predictor) == (evict, kind)
        prompt = [3, 1, 4, 1, 5, 9, 2]
        np.testing.assert_array_equal(opened.engine.prefill(prompt), resident.engine.prefill(prompt))
        for token in (7, 8, 200, 7, 31, 8, 7):
            np.testing.assert_array_equal(opened.engine.decode_step(token), resident.engine.decode_step(token))
        assert opened.controller.totals.misses > 0


def test_a_trained_stride_is_not_overruled(model: GGUFModel, tmp_path: Path) -> None:
    path = save_for(model, tmp_path / "p.gguf", kind="mlp")  # of stride 1
    assert choose_forecasting(model, str(path), 1, "auto").stride == 1
    with pytest.raises(UsageError, match=r"--stride 3: .*p.gguf forecasts as far ahead as it was trained"):
        choose_forecasting(model, str(path), 3, "auto")
