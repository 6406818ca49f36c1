"""The runtime's networks equal their torch twins, see a prompt as they see single tokens, and forget when told to."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from models.expert_provider import Routing
from pearl_cli.predict.choose import make_forecaster
from pearl_cli.predict.horizon_prefetch import HorizonPrefetch
from pearl_cli.predict.mlp import StrideMLP
from pearl_cli.predict.reuse_history import NUM_FEATURES
from pearl_cli.predict.train import _export
from pearl_cli.predict.train_data import history_features
from pearl_cli.predict.train_networks import PerLayerMLP, Trajectory
from tests.pearl_cli.predict.forecast_files import random_predictor
from tests.tolerances import FORECAST_FLOAT32

T, LAYERS, HIDDEN, WIDTH, HORIZON, EXPERTS, K = 9, 2, 10, 8, 3, 6, 2


def tokens(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """x float32 [T, HIDDEN], topk_ids int64 [T, K]."""
    rng = np.random.default_rng(seed)
    ids = np.stack([rng.choice(EXPERTS, K, replace=False) for _ in range(T)])
    return rng.standard_normal((T, HIDDEN)).astype(np.float32), ids


@pytest.mark.parametrize("kind", ["horizon-mlp", "trajectory"])
def test_equals_the_network_that_was_trained(kind: str) -> None:
    torch.manual_seed(0)
    twin = Trajectory if kind == "trajectory" else PerLayerMLP
    net = twin(LAYERS, HIDDEN, WIDTH, HORIZON, EXPERTS, NUM_FEATURES)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
        arrays = {name: array.copy() for name, array in _export(net, [0, 2], kind).items()}
        x, ids = tokens()
        features = torch.from_numpy(history_features(ids, EXPERTS))
        given = torch.from_numpy(np.stack([x, x], axis=1)), torch.stack([features, features], dim=1)
        expected = torch.sigmoid(net(*(g[None] for g in given))[0] if kind == "trajectory" else net(*given)).numpy()
    forecaster = make_forecaster(random_predictor(kind)[0], arrays, recalibrates=False)
    forecaster.begin(np.zeros(T, np.int64), 0, "prefill")
    for i, layer in enumerate((0, 2)):
        got, _ = forecaster.observe(layer, x, ids)
        np.testing.assert_allclose(got, expected[:, i], atol=FORECAST_FLOAT32)


@pytest.mark.parametrize("kind", ["horizon-mlp", "trajectory"])
def test_a_prompt_at_once_equals_token_by_token(kind: str) -> None:
    x, ids = tokens()
    at_once, one_by_one = (make_forecaster(*random_predictor(kind)) for _ in range(2))
    at_once.begin(np.zeros(T, np.int64), 0, "prefill")
    whole = at_once.expected(0, x, ids)
    assert whole.dtype == np.float64
    for t in range(T):
        one_by_one.begin(np.zeros(1, np.int64), t, "decode")
        row = one_by_one.expected(0, x[t : t + 1], ids[t : t + 1])[0]
        np.testing.assert_allclose(row, whole[t], rtol=1e-4)
    assert (whole >= 1.0).all()


@pytest.mark.parametrize("recalibrates", [True, False])
@pytest.mark.parametrize("kind", ["horizon-mlp", "trajectory"])
def test_one_token_compiled_equals_the_arrays_that_define_it(kind: str, recalibrates: bool) -> None:
    """Long enough for slopes and offsets to have moved; experts in the order in which they would leave. The last one
    nobody expects, so that the least rate counts.
    """
    rng = np.random.default_rng(3)
    card, arrays = random_predictor(kind, num_experts=20, num_experts_per_tok=4)
    arrays["blk.0.b2"].reshape(card.horizon, 20)[:, -1] = -90.0
    by_array, in_steps, compiled = (make_forecaster(card, arrays, recalibrates) for _ in range(3))
    x = rng.standard_normal((80, HIDDEN)).astype(np.float32)
    ids = np.stack([rng.choice(14, 4, replace=False) for _ in x]).astype(np.int32)
    for forecaster in (by_array, in_steps, compiled):
        forecaster.begin(np.zeros(80, np.int64), 0, "prefill")
        forecaster._history[0].frequency[:, -1] = 0.0
    next_uses = by_array.expected(0, x, ids)
    probabilities, _ = in_steps.observe(0, x, ids)
    for t in range(len(x)):
        row = compiled.expected(0, x[t : t + 1], ids[t : t + 1])
        np.testing.assert_allclose(compiled.latest[0], probabilities[t], atol=FORECAST_FLOAT32)
        np.testing.assert_allclose(row[0], next_uses[t], rtol=FORECAST_FLOAT32)
        np.testing.assert_array_equal(np.argsort(-row[0]), np.argsort(-next_uses[t]))
    assert recalibrates or row[0, -1] == pytest.approx(card.horizon + 1e4)
    one, seen = compiled.observe(0, x[:1], ids[:1])
    again, known = by_array.observe(0, np.concatenate([x[:1], x[:1]]), np.concatenate([ids[:1], ids[:1]]))
    np.testing.assert_allclose(one[0], again[0], atol=FORECAST_FLOAT32)
    np.testing.assert_array_equal(seen[0], known[0])
    assert (abs(compiled._calibration[0].scale - [1.0, 0.0]).max() > 0.1) == recalibrates


@pytest.mark.parametrize("kind", ["horizon-mlp", "trajectory"])
def test_fresh_has_seen_nothing(kind: str) -> None:
    x, ids = tokens()
    used = make_forecaster(*random_predictor(kind))
    first = used.expected(0, x, ids)
    used.begin(np.zeros(T, np.int64), 0, "prefill")
    assert not np.array_equal(used.expected(0, x, ids), first)  # its history went on
    np.testing.assert_array_equal(used.fresh().expected(0, x, ids), first)


def test_a_jump_in_the_sequence_clears_the_trajectory() -> None:
    x, ids = tokens()
    forecaster = make_forecaster(*random_predictor("trajectory"))
    forecaster.begin(np.zeros(T, np.int64), 0, "prefill")
    forecaster.observe(0, x, ids)
    forecaster.begin(np.zeros(1, np.int64), T, "decode")
    assert forecaster._state[0].any()  # type: ignore[attr-defined]
    forecaster.begin(np.zeros(1, np.int64), T - 2, "decode")
    assert not forecaster._state[0].any()  # type: ignore[attr-defined]


def test_stride_mlp_aims_at_the_layer_further_on_and_around_the_corner() -> None:
    class Host:
        def to_host(self, array: np.ndarray) -> np.ndarray:
            return array

    class Inputs:
        x = tokens()[0][:1]

    mlp = StrideMLP(*random_predictor("mlp"), Host())  # type: ignore[arg-type]
    routing = Routing(np.array([[0, 1]], np.int32), np.ones((1, 2), np.float32))
    found = [mlp.forecast(layer, None, Inputs(), routing)[0] for layer in (0, 2)]  # type: ignore[arg-type]
    assert [f.layer for f in found] == [2, 0]
    assert all(f.scores.min() > 0.0 and f.scores.max() < 1.0 for f in found)


def test_prefetching_uses_what_the_target_layer_said_last() -> None:
    x, ids = tokens()
    forecaster = make_forecaster(*random_predictor())
    prefetch = HorizonPrefetch(forecaster, None, stride=1, shared=True)  # type: ignore[arg-type]
    assert prefetch.forecast(0, None, None, None) == []  # type: ignore[arg-type]
    probabilities, _ = forecaster.observe(2, x[:1], ids[:1])
    (found,) = prefetch.forecast(0, None, None, None)  # type: ignore[arg-type]
    assert found.layer == 2
    np.testing.assert_array_equal(found.scores, probabilities[0, 0])
