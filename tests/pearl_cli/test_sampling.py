"""The sampling chain against plain numpy, its defaults, its seed."""

from __future__ import annotations

import numpy as np
import pytest

from models.errors import PearlError, UsageError
from pearl_cli.sampling import Sampler, SamplingParams, forbid, penalise
from tests.tolerances import PAPER_DECIMALS

OFF = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
DRAWS = 4000


def logits_of(*probabilities: float) -> np.ndarray:
    return np.log(np.array(probabilities, dtype=np.float32))


def drawn(logits: np.ndarray, n: int = DRAWS, **params: float) -> np.ndarray:
    """How often each token came, as a share."""
    sampler = Sampler(SamplingParams(**{"seed": 7, **OFF, **params}), logits.size)  # type: ignore[arg-type]
    tokens = [sampler.sample(logits) for _ in range(n)]
    return np.bincount(tokens, minlength=logits.size) / n


def assert_shares(shares: np.ndarray, expected: list[float]) -> None:
    """Within four standard deviations of the binomial, and exactly zero where zero is expected."""
    wanted = np.array(expected)
    assert (np.abs(shares - wanted) <= 4 * np.sqrt(wanted * (1 - wanted) / DRAWS)).all(), (shares, wanted)


def test_defaults_are_llama_cpps() -> None:
    params = SamplingParams()
    assert (params.temperature, params.top_k, params.top_p, params.min_p) == (0.8, 40, 0.95, 0.05)
    assert (params.repeat_penalty, params.repeat_last_n) == (1.0, 64)
    assert (params.presence_penalty, params.frequency_penalty) == (0.0, 0.0)


def test_the_plain_draw_follows_the_softmax() -> None:
    assert_shares(drawn(logits_of(0.5, 0.3, 0.2)), [0.5, 0.3, 0.2])


def test_temperature_sharpens() -> None:
    assert_shares(drawn(logits_of(0.5, 0.3, 0.2), temperature=0.5), [0.25 / 0.38, 0.09 / 0.38, 0.04 / 0.38])


def test_top_k_keeps_the_best() -> None:
    assert_shares(drawn(logits_of(0.1, 0.4, 0.2, 0.3), top_k=2), [0, 4 / 7, 0, 3 / 7])


def test_top_p_keeps_the_token_that_crosses() -> None:
    assert_shares(drawn(logits_of(0.4, 0.3, 0.2, 0.1), top_p=0.65), [4 / 7, 3 / 7, 0, 0])
    assert_shares(drawn(logits_of(0.4, 0.3, 0.2, 0.1), top_p=0.0), [1, 0, 0, 0])


def test_min_p_is_relative_to_the_best() -> None:
    assert_shares(drawn(logits_of(0.5, 0.3, 0.15, 0.05), min_p=0.5), [5 / 8, 3 / 8, 0, 0])


def test_top_p_comes_before_temperature() -> None:
    """At temperature 3 the first token alone would be no 0.65; cut before, two are left."""
    hot = drawn(logits_of(0.4, 0.3, 0.2, 0.1), top_p=0.65, temperature=3.0)
    assert (hot[2:] == 0).all()
    assert (hot[:2] > 0).all()


def test_top_k_comes_before_top_p() -> None:
    """Of the two kept, the first has 4/7 > 0.55, so top-p leaves it alone; over all four it would leave two."""
    assert_shares(drawn(logits_of(0.4, 0.3, 0.2, 0.1), top_k=2, top_p=0.55), [1, 0, 0, 0])


def test_temperature_zero_is_arg_max_with_ties_to_the_smaller_id() -> None:
    sampler = Sampler(SamplingParams(temperature=0), 4)
    assert sampler.sample(np.array([1, 3, 3, 2], dtype=np.float32)) == 1


@pytest.mark.parametrize("top_k", [1, 5, 40, 300, 900, 1999])
@pytest.mark.parametrize("vocab_size", [257, 2000])
def test_top_k_of_a_large_vocabulary_is_that_of_a_stable_sort(vocab_size: int, top_k: int) -> None:
    """Many equal logits: the smaller ids win, and the draw sees the candidates in one fixed order."""
    rng = np.random.default_rng(vocab_size + top_k)
    logits = rng.integers(0, 12, vocab_size).astype(np.float32)
    order = np.lexsort((np.arange(vocab_size), -logits))[:top_k]
    sampler = Sampler(SamplingParams(**{**OFF, "top_k": top_k, "seed": 1}), vocab_size)  # type: ignore[arg-type]
    assert {sampler.sample(logits) for _ in range(200)} <= set(order.tolist())
    masked = np.full(vocab_size, -1e9, dtype=np.float32)
    masked[order] = logits[order]
    limited = Sampler(SamplingParams(**{**OFF, "top_k": top_k, "seed": 9}), vocab_size)  # type: ignore[arg-type]
    unlimited = Sampler(SamplingParams(**{**OFF, "seed": 9}), vocab_size)  # type: ignore[arg-type]
    assert [limited.sample(logits) for _ in range(50)] == [unlimited.sample(masked) for _ in range(50)]


def test_a_seed_reproduces_and_a_random_one_is_shown() -> None:
    logits = np.zeros(1000, dtype=np.float32)
    params = {**OFF, "top_k": 500}

    def tokens(seed: int) -> tuple[list[int], int]:
        sampler = Sampler(SamplingParams(**params, seed=seed), 1000)  # type: ignore[arg-type]
        return [sampler.sample(logits) for _ in range(20)], sampler.seed

    first, seed = tokens(-1)
    assert tokens(seed) == (first, seed)
    assert tokens(3)[0] != tokens(4)[0]
    assert tokens(3)[1] == 3


# Penalties
def test_repeat_penalty_looks_at_the_sign_and_at_each_id_once() -> None:
    logits = np.array([2, -2, 1], dtype=np.float32)
    penalise(logits, [0, 1, 1, 1], SamplingParams(repeat_penalty=1.5))
    np.testing.assert_allclose(logits, [1.333333, -3.0, 1.0], atol=PAPER_DECIMALS)


def test_frequency_counts_and_presence_does_not() -> None:
    logits = np.zeros(3, dtype=np.float32)
    penalise(logits, [0, 1, 1, 1], SamplingParams(frequency_penalty=0.25, presence_penalty=2.0))
    assert logits.tolist() == [-2.25, -2.75, 0.0]


def test_a_penalty_of_one_changes_nothing() -> None:
    logits = np.random.default_rng(0).normal(size=64).astype(np.float32)
    copy = logits.copy()
    penalise(copy, list(range(64)), SamplingParams(repeat_penalty=1.0))
    assert (copy == logits).all()


def greedy(window: list[int], **params: float) -> int:
    """The best of two almost equal tokens after the penalties."""
    logits = np.array([1.0, 0.9, -5.0], dtype=np.float32)
    sampler = Sampler(SamplingParams(temperature=0, repeat_penalty=2.0, **params), 3)  # type: ignore[arg-type]
    token = sampler.sample(logits, window)
    assert logits.tolist() == np.array([1.0, 0.9, -5.0], dtype=np.float32).tolist()
    for token_id in window:
        sampler.accept(token_id)
    assert sampler.sample(logits) == token
    return token


def test_the_window_is_the_last_tokens_of_all_that_came() -> None:
    assert greedy([0]) == 1
    assert greedy([0, 2, 2], repeat_last_n=2) == 0
    assert greedy([0, 2, 2], repeat_last_n=3) == 1
    assert greedy([0] + [2] * 63) == 1
    assert greedy([0] + [2] * 64) == 0
    assert greedy([0] + [2] * 640, repeat_last_n=-1) == 1
    assert greedy([0], repeat_last_n=0) == 0
    assert greedy([]) == 0


# Bias and faults
def test_forbidden_tokens_are_never_drawn() -> None:
    logits = logits_of(0.9, 0.05, 0.05)
    bias = forbid({0, 2})
    assert Sampler(SamplingParams(temperature=0, logit_bias=bias), 3).sample(logits) == 1
    assert drawn(logits, 50, logit_bias=bias).tolist() == [0, 1, 0]  # type: ignore[arg-type]


def test_a_bias_is_added() -> None:
    assert Sampler(SamplingParams(temperature=0, logit_bias=((1, 0.5), (1, 0.6))), 2).sample(logits_of(0.7, 0.3)) == 1


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_logit_that_is_no_number_stops_the_run(value: float) -> None:
    logits = np.zeros(5, dtype=np.float32)
    logits[3] = value
    for temperature in (0.0, 0.8):
        with pytest.raises(PearlError, match="as the logit of token 3"):
            Sampler(SamplingParams(temperature=temperature), 5).sample(logits)


@pytest.mark.parametrize(
    ("option", "params"),
    [
        ("--temp", {"temperature": -1.0}),
        ("--temp", {"temperature": float("nan")}),
        ("--top-p", {"top_p": 1.5}),
        ("--min-p", {"min_p": -0.1}),
        ("--repeat-penalty", {"repeat_penalty": 0.0}),
        ("--repeat-penalty", {"repeat_penalty": 1e-300}),
        ("--repeat-penalty", {"repeat_penalty": float("inf")}),
        ("--repeat-last-n", {"repeat_last_n": -2}),
        ("--presence-penalty", {"presence_penalty": float("inf")}),
        ("--frequency-penalty", {"frequency_penalty": float("nan")}),
        ("--frequency-penalty", {"frequency_penalty": 1e308}),
        ("--seed", {"seed": -2}),
    ],
)
def test_a_parameter_out_of_range_is_named(option: str, params: dict[str, float]) -> None:
    with pytest.raises(UsageError, match=option):
        SamplingParams(**params)  # type: ignore[arg-type]


def test_a_window_longer_than_any_sequence_is_the_whole_one() -> None:
    sampler = Sampler(SamplingParams(temperature=0.0, repeat_penalty=2.0, repeat_last_n=10**20), 3)
    sampler.accept(0)
    assert sampler.sample(np.array([1.5, 1.0, 0.0], np.float32)) == 1


def test_a_bias_outside_the_vocabulary_or_on_all_of_it_is_refused() -> None:
    with pytest.raises(UsageError, match="outside the vocabulary of 3"):
        Sampler(SamplingParams(logit_bias=((3, 1.0),)), 3)
    with pytest.raises(UsageError, match="forbids every token"):
        Sampler(SamplingParams(logit_bias=forbid(range(3))), 3)


def test_the_callers_logits_must_fit() -> None:
    with pytest.raises(ValueError, match="expected"):
        Sampler(SamplingParams(), 3).sample(np.zeros(4, dtype=np.float32))
