"""The gated delta rule by chunks: equal to the recurrence that defines it and to transformers' own chunked form, at odd
lengths, over the borders of chunks, from a state on, and by any number of threads; and the products it is made of.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numba import njit

from kernels.cpu import delta_rule as recurrent
from kernels.cpu import parallel
from kernels.cpu.delta_chunks import CHUNK, MIN_TOKENS
from kernels.cpu.features import ISAS, runnable, target
from kernels.cpu.native import address_of
from kernels.cpu.native_call import call_native
from kernels.cpu.row_products import ROWS, emit_row_products
from kernels.reference.delta_rule import delta_rule_ref, key_head_of
from tests.kernels.delta_problem import Problem
from tests.kernels.recurrence import relative_error
from tests.tolerances import DELTA_RULE_RELATIVE, ROW_PRODUCT_RELATIVE

LENGTHS = [MIN_TOKENS, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK - 1, 2 * CHUNK, 2 * CHUNK + 7, 131]
WIDTHS = [(2, 4, 16, 16, True), (3, 3, 33, 9, False), (1, 3, 10, 130, False), (2, 4, 128, 128, False)]


def token_by_token(monkeypatch: pytest.MonkeyPatch, problem: Problem, state: np.ndarray) -> np.ndarray:
    with monkeypatch.context() as patch:
        patch.setattr(recurrent, "MIN_TOKENS", 1 << 30)
        return problem.run(state)


@pytest.mark.parametrize("n_tokens", LENGTHS)
@pytest.mark.parametrize("widths", WIDTHS, ids=str)
def test_chunks_are_the_recurrence(
    n_tokens: int, widths: tuple[int, int, int, int, bool], monkeypatch: pytest.MonkeyPatch, nan_poison: None
) -> None:
    problem = Problem(n_tokens, *widths)
    state, one_by_one, exact = (problem.state.copy() for _ in range(3))
    found = problem.run(state)
    slow = token_by_token(monkeypatch, problem, one_by_one)
    expected = delta_rule_ref(problem.qkv, problem.beta, problem.alpha, problem.rule, exact)
    assert np.abs(found - slow).max() > 0.0, "the same way was taken twice"
    for out, after in ((slow, one_by_one), (expected, exact)):
        assert relative_error(found, out) < DELTA_RULE_RELATIVE
        assert relative_error(state, after) < DELTA_RULE_RELATIVE


@pytest.mark.parametrize("cuts", [(40, 1, 7, 49), (17, 64, 16), (1, 1, 95), (33, 32, 32)])
def test_a_prompt_in_pieces_leaves_the_same_state(cuts: tuple[int, ...]) -> None:
    """Chunks begin anew with each call, and short calls go token by token."""
    problem = Problem(sum(cuts), 2, 4, 16, 24, True)
    state, pieces = problem.state.copy(), problem.state.copy()
    whole = problem.run(state)
    ends = np.cumsum(cuts)
    parts = [problem.run(pieces, slice(end - n, end)) for n, end in zip(cuts, ends, strict=True)]
    assert relative_error(np.concatenate(parts), whole) < DELTA_RULE_RELATIVE
    assert relative_error(pieces, state) < DELTA_RULE_RELATIVE


def test_the_number_of_threads_changes_no_bit() -> None:
    problem, used = Problem(70, 2, 6, 32, 32, False), parallel.num_threads()
    results = []
    try:
        for n_threads in (1, 2):
            parallel.set_threads(n_threads)
            state = problem.state.copy()
            results.append((problem.run(state), state))
    finally:
        parallel.set_threads(used)
    for one, two in zip(*results, strict=True):
        np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("gate", [-200.0, 200.0])
@pytest.mark.parametrize("beta", [-200.0, 200.0])
def test_gates_at_the_ends_of_the_range(gate: float, beta: float) -> None:
    """A gate that forgets all divides by nothing; keys that are all alike, learned wholly, stay exact."""
    problem = Problem(2 * CHUNK + 3, 1, 2, 8, 8, False)
    problem.alpha[:, 0], problem.beta[:, 1] = gate, beta
    problem.qkv[:, 8:16] = problem.qkv[0, 8:16]
    state, exact = problem.state.copy(), problem.state.copy()
    found = problem.run(state)
    expected = delta_rule_ref(problem.qkv, problem.beta, problem.alpha, problem.rule, exact)
    assert np.isfinite(found).all()
    assert relative_error(found, expected) < DELTA_RULE_RELATIVE
    assert relative_error(state, exact) < DELTA_RULE_RELATIVE


@pytest.mark.parametrize("n_tokens", [CHUNK, 70, 131])
@pytest.mark.parametrize("form", ["torch_chunk_gated_delta_rule", "torch_recurrent_gated_delta_rule"])
def test_chunks_are_transformers(n_tokens: int, form: str) -> None:
    torch = pytest.importorskip("torch")
    modeling = pytest.importorskip("transformers.models.qwen3_next.modeling_qwen3_next")
    problem = Problem(n_tokens, 2, 4, 32, 16, False)
    rule, state = problem.rule, problem.state.copy()
    keys = rule.num_key_heads * rule.key_dim
    q, k = (problem.qkv[:, i * keys : (i + 1) * keys].reshape(n_tokens, -1, rule.key_dim) for i in (0, 1))
    v = problem.qkv[:, 2 * keys :].reshape(n_tokens, rule.num_heads, rule.value_dim)
    own = key_head_of(rule)
    decay = rule.decay * np.logaddexp(0.0, problem.alpha + rule.dt_bias)
    rows = [torch.from_numpy(np.ascontiguousarray(part, np.float32))[None] for part in (q[:, own], k[:, own], v, decay)]
    out, after = getattr(modeling, form)(
        *rows, torch.sigmoid(torch.from_numpy(np.ascontiguousarray(problem.beta)))[None],
        initial_state=torch.from_numpy(state.copy())[None], output_final_state=True, use_qk_l2norm_in_kernel=True,
    )  # fmt: skip
    found = problem.run(state)
    assert relative_error(found, out[0].reshape(n_tokens, -1).numpy()) < DELTA_RULE_RELATIVE
    assert relative_error(state, after[0].numpy()) < DELTA_RULE_RELATIVE


@njit
def _call(function: int, arguments: tuple[int, ...]) -> None:
    call_native(function, *arguments)


@pytest.mark.parametrize("isa", [isa for isa in ISAS if runnable(isa)])
@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize("rows", [1, ROWS])
def test_row_products_and_nothing_beside_them(rows: int, fresh: bool, isa: str) -> None:
    chosen, lanes = target(isa), 16 if isa == "avx512vnni" else 8

    def emit(e: object, *arguments: object) -> None:
        emit_row_products(e, arguments, rows, lanes, fresh)  # type: ignore[arg-type]

    function = address_of(f"test_row_products_{rows}_{fresh}", 10, emit, chosen)
    rng, factor = np.random.default_rng(0), np.array([0.5], np.float32)
    for n_k in (1, 5, 33):
        for n_columns in (1, 7, 8, 15, 16, 17, 33, 130):
            page = np.full((rows + 2, n_columns + 40), np.nan, np.float32)
            a, b = rng.standard_normal((n_k, rows + 3)).astype(np.float32), _rows(rng, n_k, n_columns + 2)
            out = page[1:-1, 20:-20]
            before = _rows(rng, rows, n_columns)
            if not fresh:
                out[:] = before
            strides = (out.strides[0], factor.ctypes.data, a.ctypes.data, 4, a.strides[0], b.ctypes.data, b.strides[0])
            _call(function, (out.ctypes.data, *strides, n_k, n_columns))
            left, right = a[:, :rows].T.astype(np.float64), b[:, :-2]
            expected = (0.0 if fresh else 0.5) * before + left @ right
            size = np.abs(left) @ np.abs(right) + np.abs(before)
            assert (np.abs(out - expected) <= ROW_PRODUCT_RELATIVE * size).all()
            out[:] = np.nan
            assert np.isnan(page).all()


def _rows(rng: np.random.Generator, n: int, width: int) -> np.ndarray:
    return rng.standard_normal((n, width)).astype(np.float32)


def test_a_row_is_the_same_in_a_group_and_alone() -> None:
    """So the length of a prompt's last chunk changes no earlier token's bits."""
    problem: Callable[..., Problem] = lambda n: Problem(n, 1, 2, 32, 48, False)  # noqa: E731
    long, short = problem(3 * CHUNK), problem(3 * CHUNK)
    cut = 2 * CHUNK + 5
    states = long.state.copy(), short.state.copy()
    np.testing.assert_array_equal(long.run(states[0])[:cut], short.run(states[1], slice(0, cut)))
