"""Recalibration while serving: sigmoids that are wrong on a new domain become true, step by step of the horizon, order
is kept, and eviction is not worse for it.
"""

from __future__ import annotations

import numpy as np
import pytest

from kernels.backend import Activations
from models.expert_provider import Routing
from pearl_cli.predict.calibration import expected_calibration_error
from pearl_cli.predict.choose import make_forecaster
from pearl_cli.predict.mlp import StrideMLP
from pearl_cli.predict.online_calibration import OnlineCalibration
from pearl_cli.predict.train_data import used
from tests.pearl_cli.predict.forecast_files import random_predictor
from tests.tolerances import FORECAST_TOLERANCE

EVENTS, EXPERTS, K = 600, 12, 3


def drawn(rng: np.random.Generator, logits: np.ndarray) -> np.ndarray:
    """Ids [K] chosen with the odds of `logits` [E]."""
    return np.argsort(-(logits + rng.gumbel(size=logits.size)))[:K]


def shifted_events(horizon: int) -> tuple[np.ndarray, np.ndarray]:
    """(logits float32 [T, horizon, E] of forecasts, ids [T, K]): step k is sure of itself by 1 + k too much, and k too
    high."""
    rng = np.random.default_rng(0)
    true = rng.standard_normal((EVENTS + horizon, EXPERTS)) * 2
    ids = np.stack([drawn(rng, row) for row in true])
    logits = np.empty((EVENTS, horizon, EXPERTS), np.float32)
    for k in range(horizon):
        logits[:, k] = (2 + k) * true[k + 1 : k + 1 + EVENTS] + k
    return logits, ids[:EVENTS]


def errors(logits: np.ndarray, ids: np.ndarray) -> list[float]:
    """Calibration error of each step in the second half of the events."""
    happened = used(ids, EXPERTS).astype(np.float64)
    found = []
    for k in range(logits.shape[1]):
        p = 1 / (1 + np.exp(-logits[EVENTS // 2 : EVENTS - k - 1, k].astype(np.float64)))
        found.append(expected_calibration_error(p, happened[EVENTS // 2 + k + 1 :]))
    return found


def test_each_step_of_the_horizon_becomes_true_on_a_shifted_domain() -> None:
    raw, ids = shifted_events(3)
    corrected = raw.copy()
    OnlineCalibration(3, EXPERTS).recalibrate(corrected, ids)
    before, after = errors(raw, ids), errors(corrected, ids)
    assert all(error > 0.08 for error in before)
    assert all(late < 0.5 * early for early, late in zip(before, after, strict=True)), (before, after)
    np.testing.assert_array_equal(np.argsort(-corrected[-1], axis=-1), np.argsort(-raw[-1], axis=-1))


def test_all_at_once_equals_event_by_event() -> None:
    raw, ids = shifted_events(3)
    at_once, one_by_one = raw.copy(), raw.copy()
    whole, single = OnlineCalibration(3, EXPERTS), OnlineCalibration(3, EXPERTS)
    whole.recalibrate(at_once, ids)
    for t in range(EVENTS):
        single.recalibrate(one_by_one[t : t + 1], ids[t : t + 1])
    np.testing.assert_array_equal(at_once, one_by_one)


def test_one_event_is_one_newton_step_on_the_log_loss() -> None:
    calibration = OnlineCalibration(1, EXPERTS)
    rng = np.random.default_rng(1)
    z, ids = rng.standard_normal(EXPERTS).astype(np.float32), np.array([1, 4, 5])
    calibration.settle(z, ids)
    x = np.stack([z.astype(np.float64), np.ones(EXPERTS)], axis=1)
    p = 1 / (1 + np.exp(-x[:, 0]))
    gradient = x.T @ (p - used(ids[None], EXPERTS)[0])
    hessian = 10.0 * np.eye(2) + (x * (p * (1 - p))[:, None]).T @ x
    expected = np.array([1.0, 0.0]) - np.linalg.solve(hessian, gradient)
    np.testing.assert_allclose(calibration.scale[0], expected, rtol=FORECAST_TOLERANCE)


@pytest.mark.parametrize("kind", ["horizon-mlp", "trajectory"])
def test_the_runtime_forecasters_recalibrate_and_can_be_left_as_trained(kind: str) -> None:
    """Random weights forecast nothing: their calibration error must fall while serving."""
    card, arrays = random_predictor(kind)
    rng = np.random.default_rng(2)
    x = rng.standard_normal((EVENTS, card.hidden_size)).astype(np.float32)
    ids = np.stack([rng.choice(card.num_experts, card.num_experts_per_tok, replace=False) for _ in range(EVENTS)])
    happened = used(ids, card.num_experts).astype(np.float64)
    found = {}
    for recalibrates in (False, True):
        forecaster = make_forecaster(card, arrays, recalibrates)
        forecaster.begin(np.zeros(EVENTS, np.int64), 0, "prefill")
        p = forecaster.observe(0, x, ids)[0]
        found[recalibrates] = [
            expected_calibration_error(p[100 : EVENTS - k - 1, k], happened[101 + k :]) for k in range(card.horizon)
        ]
    assert all(late < 0.5 * early for early, late in zip(found[False], found[True], strict=True)), found


def test_the_stride_mlp_learns_from_the_layers_it_aims_at() -> None:
    class Host:
        def to_host(self, array: np.ndarray) -> np.ndarray:
            return array

    card, arrays = random_predictor("mlp")
    mlp = StrideMLP(card, arrays, Host())  # type: ignore[arg-type]
    rng = np.random.default_rng(3)
    served, trained, happened = [], [], []
    for _ in range(400):
        for layer in card.layers:
            x = rng.standard_normal((1, card.hidden_size)).astype(np.float32)
            ids = rng.choice(card.num_experts, card.num_experts_per_tok, replace=False)
            if served and layer == card.layers[0]:
                happened.append(used(ids[None], card.num_experts)[0])
            routing = Routing(ids[None].astype(np.int32), np.ones((1, ids.size), np.float32))
            (found,) = mlp.forecast(layer, None, Activations(x), routing)  # type: ignore[arg-type]
            if found.layer == card.layers[0]:
                served.append(found.scores)
                trained.append(mlp.scores(layer, x)[0])
    y = np.array(happened, np.float64)
    before, after = (expected_calibration_error(np.array(p[:-1])[100:], y[100:]) for p in (trained, served))
    assert after < 0.5 * before, (before, after)
