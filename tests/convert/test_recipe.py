"""Types by role, and ggml's fallbacks where a row does not divide."""

from __future__ import annotations

import pytest

from convert.recipe import fallback_type, parse_recipe, role_of
from kernels.quant_types import QuantType as Q
from kernels.quant_types import row_bytes
from models.errors import UnsupportedQuantType, UsageError


def chosen(quant: str | None, recipe: str | None, name: str, n_cols: int = 1024, tied: bool = False) -> Q:
    return parse_recipe(quant, recipe).type_for(name, n_cols, 2, Q.BF16, tied)


@pytest.mark.parametrize(
    ("wanted", "stored", "n_bytes"),
    [
        (Q.Q2_K, Q.IQ4_NL, 792),
        (Q.Q3_K, Q.IQ4_NL, 792),
        (Q.Q4_K, Q.Q5_0, 968),
        (Q.Q5_K, Q.Q5_1, 1056),
        (Q.Q6_K, Q.Q8_0, 1496),
    ],
)
def test_rows_of_1408_fall_back_as_in_llama_cpp(wanted: Q, stored: Q, n_bytes: int) -> None:
    assert fallback_type(wanted, 1408) is stored
    assert row_bytes(stored, 1408) == n_bytes
    assert fallback_type(wanted, 2880) is stored
    for whole in (512, 768, 1024):
        assert fallback_type(wanted, whole) is wanted


def test_rows_that_nothing_divides_become_f16() -> None:
    assert fallback_type(Q.Q4_K, 100) is Q.F16
    assert fallback_type(Q.Q8_0, 100) is Q.F16


def test_a_fallback_leaves_a_note() -> None:
    recipe = parse_recipe("q4_k", None)
    for expert in range(2):
        assert recipe.type_for(f"blk.0.ffn_down.{expert}.weight", 1408, 2, Q.BF16, False) is Q.Q5_0
    assert recipe.notes() == ["exps.down: rows of 1408 do not divide into Q4_K blocks; 2 tensors are stored as Q5_0"]


def test_plain_type_raises_the_output_matrix_and_keeps_norm_and_router() -> None:
    assert chosen("q4_K", None, "output.weight") is Q.Q6_K
    assert chosen("q4_k", None, "token_embd.weight") is Q.Q4_K
    assert chosen("q4_k", None, "token_embd.weight", tied=True) is Q.Q6_K
    assert chosen("q8_0", None, "output.weight") is Q.Q8_0
    assert chosen("q4_k", None, "blk.1.ffn_gate_inp.weight") is Q.F32
    assert chosen("q4_k", None, "blk.1.attn_q_norm.weight") is Q.F32
    assert parse_recipe("q4_k", None).type_for("blk.0.attn_q.bias", 1024, 1, Q.BF16, False) is Q.F32


def test_recipe_picks_the_most_specific_entry() -> None:
    recipe = "attn=q8_0,exps=q4_0,exps.down=q6_k,exps.down@0-1=q8_0,embed=f16"
    assert chosen("q4_k", recipe, "blk.0.attn_k.weight") is Q.Q8_0
    assert chosen("q4_k", recipe, "blk.5.ffn_up.7.weight") is Q.Q4_0
    assert chosen("q4_k", recipe, "blk.5.ffn_down.7.weight") is Q.Q6_K
    assert chosen("q4_k", recipe, "blk.1.ffn_down.7.weight") is Q.Q8_0
    assert chosen("q4_k", recipe, "token_embd.weight") is Q.F16
    assert chosen("q4_k", "exps.gate_up=q5_k", "blk.0.ffn_gate_exps.weight") is Q.Q5_K
    assert chosen(None, "attn=q8_0", "blk.0.ffn_up.0.weight") is Q.BF16


@pytest.mark.parametrize("recipe", ["attn", "nothing=q8_0", "attn@3-1=q8_0", "embed@0-1=q8_0", "attn=q8_0,attn=q4_0"])
def test_bad_recipes_are_named(recipe: str) -> None:
    with pytest.raises(UsageError, match="--recipe"):
        parse_recipe(None, recipe)


def test_an_unknown_quant_lists_each_name_once() -> None:
    with pytest.raises(UnsupportedQuantType) as caught:
        parse_recipe("zz", None)
    listed = str(caught.value).split("supported: ")[1].split(", ")
    assert len(listed) == len(set(listed))
    assert {"Q8_0", "Q4_K_M", "MXFP4"} <= set(listed)


def test_unknown_type_lists_the_known_ones() -> None:
    with pytest.raises(UnsupportedQuantType, match=r"'q9'.*Q4_K.*Q6_K"):
        parse_recipe("q9", None)


def test_roles() -> None:
    names = [
        "token_embd.weight",
        "blk.3.ffn_gate_exps.weight",
        "blk.3.ffn_up.9.weight",
        "blk.0.ffn_gate_inp.weight",
        "output_norm.weight",
    ]
    assert [role_of(name) for name in names] == ["embed", "exps.gate", "exps.up", "router", "norm"]


def test_an_entry_that_nothing_answers_to_is_told_of() -> None:
    recipe = parse_recipe(None, "ssm=q4_0,exps@7-9=q4_0,exps.down=q6_k")
    recipe.type_for("blk.0.ffn_down.3.weight", 256, 2, Q.F32, tied=False)
    assert recipe.notes() == ["--recipe: this model has no ssm", "--recipe: this model has no exps@7-9"]


@pytest.mark.parametrize("text", ["", " , "])
def test_a_recipe_without_a_role_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=f"--recipe: '{text}' names no role"):
        parse_recipe("q8_0", text)
