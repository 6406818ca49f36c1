"""Named mixtures of types with llama.cpp's meaning: `q4_k_m` and its like give each tensor the type that llama-quantize
gives it under that name.

The rules are those of llama.cpp's `llama-quant.cpp` (`llama_tensor_get_type_impl`) for models with experts. Rows that a
type's blocks do not divide are `recipe`'s business.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from gguf.constants import LlamaFileType

from kernels.quant_types import QuantType, block_size

Q = QuantType
_DOWN = re.compile(r"\.ffn_down(?:_exps|_shexp|\.\d+)?\.weight$")
_ATTN = re.compile(r"\.attn_(v|qkv|kv_b|k|output)\.weight$")
_VALUE_LIKE = ("v", "qkv", "kv_b")
_VALUES = re.compile(rf"blk\.(\d{{1,9}})\.attn_(?:{'|'.join(_VALUE_LIKE)})\.weight$")
_STACKED_ROLES = re.compile(r"\.(?:ffn_(?:gate|up|down|gate_up)_exps|ffn_(?:gate|up|down)\.\d+|attn_[kv]_b)\.weight$")


@dataclass(frozen=True, slots=True)
class Mix:
    """`base`: the type of what no rule raises."""

    name: str
    base: QuantType
    file_type: LlamaFileType


@dataclass(frozen=True, slots=True)
class MixFacts:
    """What the rules ask of a model; `heads_per_kv`: query heads that share a key head in the first layer, 0 where that
    has none; `value_layers`: those with a matrix of values, None: all.
    """

    num_layers: int
    num_experts: int
    heads_per_kv: int
    value_layers: tuple[int, ...] | None = None

    def place_of_values(self, layer: int) -> tuple[int, int]:
        """(how many matrices of values come before that of `layer`, how many there are)."""
        if self.value_layers is None:
            return layer, self.num_layers
        return self.value_layers.index(layer), len(self.value_layers)


MIXES = {
    mix.name: mix
    for mix in (
        Mix("q2_k", Q.Q2_K, LlamaFileType.MOSTLY_Q2_K),
        Mix("q3_k_s", Q.Q3_K, LlamaFileType.MOSTLY_Q3_K_S),
        Mix("q3_k_m", Q.Q3_K, LlamaFileType.MOSTLY_Q3_K_M),
        Mix("q3_k_l", Q.Q3_K, LlamaFileType.MOSTLY_Q3_K_L),
        Mix("q4_k_s", Q.Q4_K, LlamaFileType.MOSTLY_Q4_K_S),
        Mix("q4_k_m", Q.Q4_K, LlamaFileType.MOSTLY_Q4_K_M),
        Mix("q5_k_s", Q.Q5_K, LlamaFileType.MOSTLY_Q5_K_S),
        Mix("q5_k_m", Q.Q5_K, LlamaFileType.MOSTLY_Q5_K_M),
        Mix("q6_k", Q.Q6_K, LlamaFileType.MOSTLY_Q6_K),
        Mix("mxfp4_moe", Q.MXFP4, LlamaFileType.MOSTLY_MXFP4_MOE),
    )
}


def value_layers(names: Iterable[str]) -> tuple[int, ...]:
    """The layers among whose tensors `names` is a matrix of values, alone or with queries and keys."""
    found = (_VALUES.match(name) for name in names)
    return tuple(sorted({int(each[1]) for each in found if each}))


def mix_type(mix: Mix, name: str, n_cols: int, is_output: bool, facts: MixFacts) -> QuantType:
    """Type of the matrix `name` with rows of `n_cols`. `is_output`: the output matrix, or the embedding that doubles
    as it.
    """
    if is_output:
        plain = mix.base is Q.MXFP4 or n_cols % block_size(mix.base) != 0
        return Q.Q8_0 if plain else Q.Q6_K
    if mix.base is Q.MXFP4:
        return Q.MXFP4 if _STACKED_ROLES.search(name) else Q.Q8_0
    layer = re.match(r"blk\.(\d+)\.", name)
    if layer is None:
        return mix.base
    attention = _ATTN.search(name)
    if attention is None:
        return _down_type(mix, int(layer[1]), facts.num_layers) if _DOWN.search(name) else mix.base
    if attention[1] == "output":
        return _attn_output_type(mix, facts)
    if facts.num_experts == 8:
        return Q.Q8_0
    return _attn_v_type(mix, int(layer[1]), facts) if attention[1] in _VALUE_LIKE else mix.base


def _more_bits(layer: int, num_layers: int) -> bool:
    """The first and the last eighth of the layers, and every third between."""
    eighth = num_layers // 8
    return layer < eighth or layer >= 7 * num_layers // 8 or (layer - eighth) % 3 == 2


def _down_type(mix: Mix, layer: int, num_layers: int) -> QuantType:
    if mix.name == "q2_k":
        return Q.Q3_K
    if mix.name == "q3_k_m":
        return Q.Q5_K if layer < num_layers // 16 else Q.Q4_K
    if mix.name == "q3_k_l" or (mix.name == "q4_k_s" and layer < num_layers // 8):
        return Q.Q5_K
    return Q.Q6_K if mix.name in ("q4_k_m", "q5_k_m") and _more_bits(layer, num_layers) else mix.base


def _attn_v_type(mix: Mix, layer: int, facts: MixFacts) -> QuantType:
    place, count = facts.place_of_values(layer)
    if mix.name == "q2_k":
        return Q.Q4_K if facts.heads_per_kv >= 4 else Q.Q3_K
    if mix.name == "q3_k_m":
        return Q.Q5_K if place < 2 else Q.Q4_K
    if mix.name == "q3_k_l" or (mix.name == "q4_k_s" and place < 4):
        return Q.Q5_K
    return Q.Q6_K if mix.name in ("q4_k_m", "q5_k_m") and _more_bits(place, count) else mix.base


def _attn_output_type(mix: Mix, facts: MixFacts) -> QuantType:
    if facts.num_experts == 8:
        return Q.Q5_K if mix.base in (Q.Q2_K, Q.Q3_K, Q.Q4_K) and mix.name != "q3_k_l" else mix.base
    return {"q2_k": Q.Q3_K, "q3_k_m": Q.Q4_K, "q3_k_l": Q.Q5_K}.get(mix.name, mix.base)
