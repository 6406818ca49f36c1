"""Named mixes choose what llama-quantize chooses.

`llama_quantize_types.json` is what `llama-quantize --dry-run` printed for small random models of several architectures:
by mix and tensor the types of the layers in order, run-length coded ("2*Q5_K 30*Q4_K").
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from convert.mixes import MIXES, MixFacts, value_layers
from convert.model_metadata import SIGMOID, ModelDims
from convert.pipeline import ConvertOptions, convert
from convert.recipe import Recipe, parse_recipe
from convert.synth import synthesize
from convert.synth_shapes import Shape
from kernels.quant_types import QuantType as Q
from models.errors import UnsupportedQuantType
from models.gguf import GGUFModel

GOLDEN: dict[str, Any] = json.loads((Path(__file__).parent / "llama_quantize_types.json").read_text())


def mixed(name: str, facts: dict[str, Any], recipe: str | None = None) -> Recipe:
    made, own = parse_recipe(name, recipe), facts.get("value_layers")
    made.facts = MixFacts(**{**facts, "value_layers": None if own is None else tuple(own)})
    return made


def layers_of(tensor: str, count: int, facts: dict[str, Any]) -> list[int]:
    """The layers that have `tensor`: attention's or the others, where the model says so; else dense layers lead, so a
    tensor of only some layers belongs to the last ones, or to the first if it is theirs.
    """
    own, n_layers = facts.get("value_layers"), facts["num_layers"]
    if own is not None and tensor.startswith(("attn_", "ssm_")):
        return own if tensor.startswith("attn_") else [layer for layer in range(n_layers) if layer not in own]
    first = 0 if re.fullmatch(r"ffn_(gate|up|down)\.weight", tensor) else n_layers - count
    return list(range(first, first + count))


def expanded(runs: str) -> list[str]:
    return [name for run in runs.split() for name in [run.split("*")[1]] * int(run.split("*")[0])]


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("model", GOLDEN)
def test_types_are_those_of_llama_quantize(model: str, mix: str) -> None:
    facts, table = GOLDEN[model]["facts"], GOLDEN[model]["types"][mix]
    recipe, tied = mixed(mix, facts), "output.weight" not in table
    for tensor, runs in table.items():
        types = expanded(runs)
        for layer, expected in zip(layers_of(tensor, len(types), facts), types, strict=True):
            names = {f"blk.{layer}.{tensor}", f"blk.{layer}.{tensor.replace('_exps', '.3')}"}
            for name in {tensor} if tensor in ("token_embd.weight", "output.weight") else names:
                assert recipe.type_for(name, 256, 2, Q.BF16, tied).name == expected, name


def test_layers_with_a_matrix_of_values_are_seen_by_name() -> None:
    names = ["blk.3.attn_v.weight", "blk.1.attn_qkv.weight", "blk.12.attn_kv_b.weight", "blk.1.ssm_in.weight"]
    assert value_layers([*names, "blk.2.attn_v.bias", "blk.4.attn_q.weight", "blk.5.attn_v_b.weight"]) == (1, 3, 12)


def test_a_conversion_counts_layers_that_have_attention(tmp_path: Path) -> None:
    """Of 16 layers five: the third and the last have more bits."""
    own = GOLDEN["granitehybrid_16"]["facts"]["value_layers"]
    dims = ModelDims(
        architecture="lfm2moe", hidden_size=256, num_layers=16, num_heads=8, num_kv_heads=2, head_dim=32,
        intermediate_size=256, moe_intermediate_size=32, num_experts=4, num_experts_per_tok=2, vocab_size=600,
        context_length=64, rope_theta=1e4, rms_norm_eps=1e-5, qk_norm="head", gating=SIGMOID, conv_kernel=3,
        conv_layers=tuple(layer not in own for layer in range(16)),
    )  # fmt: skip
    source = synthesize(Shape(dims, "lfm2", tied=True), tmp_path / "source", "bf16")
    path = convert(source, tmp_path / "out", ConvertOptions(quant="q4_k_m"))
    made = synthesize(Shape(dims, "lfm2", tied=True), tmp_path / "synth", "q4_k_m")
    for file in (path, made):
        with GGUFModel.open(file) as model:
            types = [model.tensors[f"blk.{layer}.attn_v.weight"].quant_type for layer in own]
        assert types == [Q.Q4_K, Q.Q4_K, Q.Q6_K, Q.Q4_K, Q.Q6_K]


def test_rows_that_a_mix_does_not_divide_fall_back() -> None:
    facts = {"num_layers": 32, "num_experts": 6, "heads_per_kv": 1}
    recipe = mixed("q4_k_m", facts)
    assert recipe.type_for("blk.0.ffn_down.3.weight", 1408, 2, Q.BF16, False) is Q.Q8_0  # Q6_K there
    assert recipe.type_for("blk.5.ffn_down.3.weight", 1408, 2, Q.BF16, False) is Q.Q5_0
    assert recipe.type_for("output.weight", 1408, 2, Q.BF16, False) is Q.Q8_0


def test_a_recipe_wins_over_a_mix() -> None:
    facts = {"num_layers": 32, "num_experts": 6, "heads_per_kv": 1}
    recipe = mixed("q4_k_m", facts, "exps.down=q3_k")
    assert recipe.type_for("blk.0.ffn_down.3.weight", 512, 2, Q.BF16, False) is Q.Q3_K
    assert recipe.type_for("blk.0.attn_v.weight", 512, 2, Q.BF16, False) is Q.Q6_K
    assert recipe.label() == "Q4_K_M-mix"


def test_plain_types_are_no_mixes_and_both_are_listed() -> None:
    assert parse_recipe("q4_k", None).mix is None
    with pytest.raises(UnsupportedQuantType, match=r"Q4_K, .*Q4_K_M"):
        parse_recipe("q4_k_x", None)


def test_a_conversion_writes_the_mix(tmp_path: Path) -> None:
    dims = ModelDims(
        architecture="llama", hidden_size=256, num_layers=2, num_heads=4, num_kv_heads=1, head_dim=64,
        intermediate_size=32, moe_intermediate_size=32, num_experts=4, num_experts_per_tok=2, vocab_size=600,
        context_length=64, rope_theta=1e4, rms_norm_eps=1e-5,
    )  # fmt: skip
    source = synthesize(Shape(dims, "spm"), tmp_path / "source", "bf16")
    path = convert(source, tmp_path / "out", ConvertOptions(quant="Q2_K"))
    assert path.name == "synth-llama-bf16-Q2_K-00001-of-00002.gguf"
    with GGUFModel.open(path) as model:
        types = {name: info.quant_type for name, info in model.tensors.items()}
        assert model.metadata["general.file_type"] == 10
    assert types["blk.1.attn_v.weight"] is Q.Q4_K  # four query heads share a key head
    assert types["blk.1.attn_q.weight"] is Q.Q2_K
    assert types["blk.1.ffn_gate.0.weight"] is Q.Q2_K
    assert types["blk.1.ffn_down.0.weight"] is Q.IQ4_NL  # Q3_K, in rows of 32
    assert types["output.weight"] is Q.Q6_K
