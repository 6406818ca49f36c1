"""Which storage type each tensor gets.

`--quant TYPE` gives TYPE to every matrix, as `llama-quantize --pure` does, with one exception: the output matrix (or
the embedding that doubles as it) is raised to Q6_K below a 6-bit type. Norms, routers, biases and other vectors stay
F32. `--quant MIX` (q4_k_m, ...) gives each matrix what llama-quantize gives it under that name (`convert.mixes`); q2_k
and q6_k are such names too. `--recipe ROLE=TYPE,...` overrides by role: attn (or attn.q, attn.k, attn.v,
attn.output), exps (or exps.gate, exps.up, exps.gate_up, exps.down), shexp, ffn, ssm (a delta net's other matrices, a
Mamba-2 layer's, a short convolution's), embed, output; `ROLE@FIRST-LAST=TYPE` limits it to a range of layers. The most
specific entry wins, the later of equals. A row that a type's blocks do not divide falls back as in llama.cpp; the
reason is reported.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field

from gguf.constants import LlamaFileType

from convert.mixes import MIXES, Mix, MixFacts, mix_type
from kernels.quant_types import QuantType, block_size
from models.errors import UnsupportedQuantType, UsageError

Q = QuantType
TARGETS = (
    Q.F32, Q.F16, Q.BF16, Q.Q8_0, Q.Q4_0, Q.Q4_1, Q.Q5_0, Q.Q5_1, Q.Q2_K, Q.Q3_K, Q.Q4_K, Q.Q5_K, Q.Q6_K,
    Q.IQ4_NL, Q.MXFP4,
)  # fmt: skip
_BELOW_SIX_BITS = {Q.Q4_0, Q.Q4_1, Q.Q5_0, Q.Q5_1, Q.Q2_K, Q.Q3_K, Q.Q4_K, Q.Q5_K, Q.IQ4_NL}
_ROW_FALLBACK = {Q.Q2_K: Q.IQ4_NL, Q.Q3_K: Q.IQ4_NL, Q.Q4_K: Q.Q5_0, Q.Q5_K: Q.Q5_1, Q.Q6_K: Q.Q8_0}
_FILE_TYPES = {
    Q.F32: LlamaFileType.ALL_F32,
    Q.F16: LlamaFileType.MOSTLY_F16,
    Q.BF16: LlamaFileType.MOSTLY_BF16,
    Q.Q8_0: LlamaFileType.MOSTLY_Q8_0,
    Q.Q4_0: LlamaFileType.MOSTLY_Q4_0,
    Q.Q4_1: LlamaFileType.MOSTLY_Q4_1,
    Q.Q5_0: LlamaFileType.MOSTLY_Q5_0,
    Q.Q5_1: LlamaFileType.MOSTLY_Q5_1,
    Q.Q2_K: LlamaFileType.MOSTLY_Q2_K,
    Q.Q3_K: LlamaFileType.MOSTLY_Q3_K_S,
    Q.Q4_K: LlamaFileType.MOSTLY_Q4_K_S,
    Q.Q5_K: LlamaFileType.MOSTLY_Q5_K_S,
    Q.Q6_K: LlamaFileType.MOSTLY_Q6_K,
    Q.IQ4_NL: LlamaFileType.MOSTLY_IQ4_NL,
    Q.MXFP4: LlamaFileType.MOSTLY_MXFP4_MOE,
}
ROLES = (
    "attn", "attn.q", "attn.k", "attn.v", "attn.output", "exps", "exps.gate", "exps.up", "exps.gate_up", "exps.down",
    "shexp", "ffn", "ssm", "embed", "output",
)  # fmt: skip
_PATTERNS = (
    (re.compile(r"^token_embd\.weight$"), "embed"),
    (re.compile(r"^output\.weight$"), "output"),
    (re.compile(r"^blk\.\d+\.attn_(q|k|v|output)\.weight$"), "attn.{}"),
    (re.compile(r"^blk\.\d+\.attn_(?:qkv|gate|kv_a_mqa|kv_b)\.weight$"), "attn"),
    (re.compile(r"^blk\.\d+\.(?:ssm_(?:in|ba|beta|alpha|out)|shortconv\.(?:in|out)_proj)\.weight$"), "ssm"),
    (re.compile(r"^blk\.\d+\.attn_(q|k|v)_[ab]\.weight$"), "attn.{}"),
    (re.compile(r"^blk\.\d+\.ffn_(gate_up|gate|up|down)_exps\.weight$"), "exps.{}"),
    (re.compile(r"^blk\.\d+\.ffn_(gate|up|down)\.\d+\.weight$"), "exps.{}"),
    (re.compile(r"^blk\.\d+\.ffn_(?:gate|up|down)_shexp\.weight$"), "shexp"),
    (re.compile(r"^blk\.\d+\.ffn_(?:gate|up|down)\.weight$"), "ffn"),
    (re.compile(r"^blk\.\d+\.ffn_gate_inp(?:_shexp)?\."), "router"),
    (re.compile(r"norm"), "norm"),
)
_RANGE = re.compile(r"^(.+)@(\d+)(?:-(\d+))?$")


def parse_type(text: str) -> QuantType:
    """The storage type called `text` (any case). Raises UnsupportedQuantType with the list of targets."""
    for target in TARGETS:
        if target.name.lower() == text.strip().lower():
            return target
    raise UnsupportedQuantType(text, [target.name for target in TARGETS])


def role_of(name: str) -> str:
    """The role of a GGUF tensor name; "other" for what no recipe names (kept F32)."""
    for pattern, role in _PATTERNS:
        found = pattern.search(name)
        if found:
            return role.format(*found.groups())
    return "other"


def fallback_type(quant_type: QuantType, n_cols: int) -> QuantType:
    """`quant_type`, or what llama.cpp stores instead where its blocks do not divide a row of `n_cols`."""
    if n_cols % block_size(quant_type) == 0:
        return quant_type
    smaller = _ROW_FALLBACK.get(quant_type)
    return smaller if smaller is not None and n_cols % block_size(smaller) == 0 else Q.F16


@dataclass(frozen=True, slots=True)
class Override:
    role: str
    quant_type: QuantType
    first_layer: int | None = None
    last_layer: int | None = None

    def matches(self, role: str, layer: int | None) -> bool:
        named = role == self.role or role.startswith(self.role + ".")
        named = named or (self.role == "exps.gate_up" and role in ("exps.gate", "exps.up"))
        if self.first_layer is None or self.last_layer is None:
            return named
        return named and layer is not None and self.first_layer <= layer <= self.last_layer

    def __str__(self) -> str:
        """What it names, as typed."""
        if self.first_layer is None:
            return self.role
        return f"{self.role}@{self.first_layer}-{self.last_layer}"

    @property
    def specificity(self) -> int:
        return 2 * self.role.count(".") + (self.first_layer is not None)


@dataclass(slots=True)
class Recipe:
    """The types of a whole conversion. `default` None keeps each source's own type; a `mix` needs the model's `facts`.

    `keeps`: types of the source that stay where no override names the tensor; `named_after`: the type that stands for
    the whole where nothing was asked for. Fallbacks and what is kept are counted for `notes`.
    """

    default: QuantType | None
    overrides: list[Override] = field(default_factory=list)
    mix: Mix | None = None
    facts: MixFacts | None = None
    keeps: frozenset[QuantType] = frozenset()
    named_after: QuantType | None = None
    _met: set[Override] = field(default_factory=set)
    _kept: Counter[tuple[str, QuantType]] = field(default_factory=Counter)
    _fallbacks: Counter[tuple[str, int, QuantType, QuantType]] = field(default_factory=Counter)

    def type_for(self, name: str, n_cols: int, n_dims: int, source_type: QuantType, tied: bool) -> QuantType:
        """Storage type of tensor `name`; counts where a row forces another type than asked for."""
        role = role_of(name)
        if role in ("norm", "router", "other") or n_dims < 2:
            return source_type if self.default is None else Q.F32
        wanted = self._wanted(name, role, n_cols, source_type, tied)
        stored = fallback_type(wanted, n_cols)
        if stored is not wanted:
            self._fallbacks[role, n_cols, wanted, stored] += 1
        return stored

    def _wanted(self, name: str, role: str, n_cols: int, source_type: QuantType, tied: bool) -> QuantType:
        layer = _layer_of(name)
        chosen = [override for override in self.overrides if override.matches(role, layer)]
        self._met.update(chosen)
        if chosen:
            return max(enumerate(chosen), key=lambda item: (item[1].specificity, item[0]))[1].quant_type
        if self.default is None:
            return source_type
        if source_type in self.keeps:
            self._kept[role, source_type] += 1
            return source_type
        is_output = role == "output" or (role == "embed" and tied)
        if self.mix is not None:
            if self.facts is None:
                raise ValueError("a mix needs the model's facts")
            return mix_type(self.mix, name, n_cols, is_output, self.facts)
        return Q.Q6_K if is_output and self.default in _BELOW_SIX_BITS else self.default

    def notes(self) -> list[str]:
        """One line for each role whose rows forced another type than asked for, or whose type stays, and for each entry
        of the recipe that no tensor of the model answers to.
        """
        kept = [f"--recipe: this model has no {each}" for each in self.overrides if each not in self._met]
        kept += [
            f"{role}: {_tensors_are(count)} {stored.name} in the checkpoint and stay so"
            for (role, stored), count in self._kept.items()
        ]
        return kept + [
            f"{role}: rows of {n_cols} do not divide into {wanted.name} blocks; "
            f"{_tensors_are(count)} stored as {stored.name}"
            for (role, n_cols, wanted, stored), count in self._fallbacks.items()
        ]

    def file_type(self) -> int | None:
        """The number for `general.file_type`, None where types are the source's."""
        if self.mix is not None:
            return int(self.mix.file_type)
        named = self.named_after or self.default
        return None if named is None else int(_FILE_TYPES[named])

    def label(self) -> str:
        """A short name for output files."""
        named = self.named_after or self.default
        base = self.mix.name.upper() if self.mix is not None else "" if named is None else named.name
        return base + ("-mix" if self.overrides else "")


def _tensors_are(count: int) -> str:
    return "1 tensor is" if count == 1 else f"{count} tensors are"


def parse_recipe(quant: str | None, recipe: str | None) -> Recipe:
    """`--quant` and `--recipe` as a Recipe. Raises UsageError or UnsupportedQuantType on what it cannot read."""
    overrides = [_parse_override(part) for part in recipe.split(",") if part.strip()] if recipe else []
    if recipe is not None and not overrides:
        raise UsageError(f"--recipe: '{recipe}' names no role; write ROLE=TYPE,..., or leave it out")
    _check_once(overrides)
    mix = MIXES.get(quant.strip().lower()) if quant is not None else None
    if mix is not None:
        return Recipe(mix.base, overrides, mix)
    if quant is None:
        return Recipe(None, overrides)
    try:
        return Recipe(parse_type(quant), overrides)
    except UnsupportedQuantType:
        names = dict.fromkeys([*(target.name for target in TARGETS), *map(str.upper, MIXES)])
        raise UnsupportedQuantType(quant, names) from None


def _check_once(overrides: list[Override]) -> None:
    seen = set()
    for item in overrides:
        part = item.role, item.first_layer, item.last_layer
        if part in seen:
            raise UsageError(f"--recipe: '{item.role}' is given twice; leave one")
        seen.add(part)


def _parse_override(text: str) -> Override:
    role, equals, type_name = text.strip().partition("=")
    if not equals:
        raise UsageError(f"--recipe: '{text.strip()}' is not ROLE=TYPE; roles: {', '.join(ROLES)}")
    ranged = _RANGE.match(role)
    role = ranged[1] if ranged else role
    if role not in ROLES:
        raise UsageError(f"--recipe: role '{role}' is unknown; roles: {', '.join(ROLES)}")
    if not ranged:
        return Override(role, parse_type(type_name))
    first, last = int(ranged[2]), int(ranged[3] or ranged[2])
    if last < first or role in ("embed", "output"):
        raise UsageError(f"--recipe: '{text.strip()}' names no range of layers")
    return Override(role, parse_type(type_name), first, last)


def _layer_of(name: str) -> int | None:
    found = re.match(r"^blk\.(\d+)\.", name)
    return int(found[1]) if found else None
