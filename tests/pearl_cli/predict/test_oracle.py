"""The oracle's forecasts have the recall and precision that were asked for, and one seed gives one sequence."""

from __future__ import annotations

import numpy as np
import pytest

from models.errors import UsageError
from pearl_cli.predict.oracle import Oracle, draw_scores, parse_oracle


@pytest.mark.parametrize(("recall", "precision"), [(1.0, 1.0), (0.85, 1.0), (0.85, 0.6), (0.3, 0.25), (0.0, 0.5)])
def test_drawn_forecasts_have_the_asked_quality(recall: float, precision: float) -> None:
    rng = np.random.default_rng(1)
    hits = fetched = total = 0
    for _ in range(2000):
        true_ids = rng.choice(32, 4, replace=False)
        chosen = np.flatnonzero(draw_scores(true_ids, 32, recall, precision, rng))
        hits += np.isin(chosen, true_ids).sum()
        fetched += chosen.size
        total += 4
    assert hits / total == pytest.approx(recall, abs=0.02)
    if recall:
        assert hits / fetched == pytest.approx(precision, abs=0.02)


def test_it_looks_one_layer_ahead_and_around_the_corner() -> None:
    asked: list[tuple[int, int]] = []

    def future(tokens_ahead: int, layer: int) -> np.ndarray | None:
        asked.append((tokens_ahead, layer))
        return None if tokens_ahead else np.array([layer])

    oracle = Oracle(future, layers=[1, 2, 4], num_experts=6, recall=1.0, precision=1.0, stride=1)
    found = [oracle.forecast(layer, None, None, None) for layer in (1, 2, 4)]  # type: ignore[arg-type]
    assert asked == [(0, 2), (0, 4), (1, 1)]
    assert [(f[0].layer, np.flatnonzero(f[0].scores).tolist()) for f in found[:2]] == [(2, [2]), (4, [4])]
    assert found[2] == []


@pytest.mark.parametrize("name", ["oracle", "oracle:", "oracle:two", "oracle:1.5", "oracle:0.5:0", "oracle:1:1:1"])
def test_other_spellings_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match="oracle:RECALL"):
        parse_oracle(name)


def test_spellings() -> None:
    assert parse_oracle("oracle:0.85") == (0.85, 1.0)
    assert parse_oracle("oracle:0.85:0.5") == (0.85, 0.5)
