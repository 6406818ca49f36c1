"""What a model file holds and whether it runs here, as plain data: the substance of `pearl info`.

Reads headers only, never weights, and looks at nothing of this machine. A file that pearl cannot run is described all
the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from convert.recipe import role_of
from kernels.quant_types import row_bytes
from models.config import ModelConfig
from models.errors import PearlError
from models.expert_store import ExpertStore, is_expert_tensor
from models.gguf import GGUFModel, StringArray, TensorInfo
from models.kv_cache import KVCache
from models.loader import non_expert_bytes
from models.pre_tokenizers import find_pre_tokenizer
from pearl_cli.memory_plan import FixedNeeds, choose_context
from pearl_cli.open_model import wanted_by
from pearl_cli.options import RunOptions
from pearl_cli.residency.build import ExpertPlaces
from pearl_cli.residency.slot_plan import floor_bytes
from pearl_cli.tensor_check import check_tensors
from pearl_cli.workspace import workspace_bytes

TOKENIZER_MODELS = ("gpt2", "llama", "gemma4")


@dataclass(frozen=True, slots=True)
class RoleReport:
    """All tensors of one role. `type_bytes`: bytes by storage type; `token_bytes`: what computing one token reads of
    them, None where the routing is not known.
    """

    role: str
    n_tensors: int
    n_weights: int
    n_bytes: int
    type_bytes: Mapping[str, int]
    token_bytes: int | None

    @property
    def bits_per_weight(self) -> float:
        return 8 * self.n_bytes / self.n_weights


@dataclass(frozen=True, slots=True)
class ExpertReport:
    """Sizes of the routed experts; `one_bytes` is the largest expert, `token_bytes` what a token reads when none is
    resident.
    """

    layout: str
    num_moe_layers: int
    num_experts: int
    num_experts_per_tok: int
    total_bytes: int
    one_bytes: int
    token_bytes: int


@dataclass(frozen=True, slots=True)
class ModelReport:
    """`config`, `experts`, `floor_bytes` (beside the process itself) are None where the file is not understood;
    `reasons` say why.
    """

    architecture: str
    name: str
    file_bytes: int
    roles: list[RoleReport]
    parameters_total: int
    parameters_active: int | None
    tokenizer: dict[str, Any]
    has_chat_template: bool
    config: ModelConfig | None = None
    experts: ExpertReport | None = None
    floor_bytes: int | None = None
    kv_bytes_per_token: int | None = None
    context_planned: int | None = None
    reasons: list[str] = field(default_factory=list)

    @property
    def supported(self) -> bool:
        return not self.reasons


def report_on(gguf: GGUFModel) -> ModelReport:
    """Describe an open model; what pearl does not support becomes a line of `reasons`, never an error."""
    reasons: list[str] = []
    config = _or_reason(reasons, lambda: ModelConfig.from_gguf(gguf))
    store = _or_reason(reasons, lambda: ExpertStore(gguf, config)) if config else None
    if config:
        _or_reason(reasons, lambda: check_tensors(gguf, config))
    tokenizer = _tokenizer(gguf.metadata)
    _or_reason(reasons, lambda: _check_tokenizer(tokenizer))
    share = config.router.num_experts_per_tok / config.router.num_experts if config else None
    tied = "output.weight" not in gguf.tensors
    weights = {is_expert: _count(gguf, is_expert) for is_expert in (False, True)}
    context = choose_context(None, config.context_length) if config else None
    name = gguf.metadata.get("general.name")
    return ModelReport(
        architecture=str(gguf.metadata.get("general.architecture", "?")),
        name=name if isinstance(name, str) else gguf.paths[0].stem,
        file_bytes=sum(header.file_bytes for header in gguf.headers),
        roles=_roles(gguf, share, tied),
        parameters_total=sum(weights.values()),
        parameters_active=None if share is None else weights[False] + round(share * weights[True]),
        tokenizer=tokenizer,
        has_chat_template=any(key.startswith("tokenizer.chat_template") for key in gguf.metadata),
        config=config,
        experts=_experts(gguf, config, store) if config and store else None,
        floor_bytes=_floor(gguf, config, store, context) if config and store and context else None,
        kv_bytes_per_token=KVCache.bytes_per_token(config) if config else None,
        context_planned=context,
        reasons=reasons,
    )


def _or_reason(reasons: list[str], attempt: Callable[[], Any]) -> Any:
    """What `attempt` gives, or None with the message of its PearlError added to `reasons`."""
    try:
        return attempt()
    except PearlError as error:
        reasons.append(str(error))
        return None


def _count(gguf: GGUFModel, experts: bool) -> int:
    return sum(math.prod(info.shape) for name, info in gguf.tensors.items() if is_expert_tensor(name) is experts)


def _roles(gguf: GGUFModel, expert_share: float | None, tied: bool) -> list[RoleReport]:
    """One entry a role in file order; attention's four matrices are one role, as are gate and up of the experts."""
    groups: dict[str, list[TensorInfo]] = {}
    for name, info in gguf.tensors.items():
        role = role_of(name)
        role = {"exps.gate": "exps.gate_up", "exps.up": "exps.gate_up"}.get(role, role)
        groups.setdefault("attn" if role.startswith("attn.") else role, []).append(info)
    return [_role(role, infos, expert_share, tied) for role, infos in groups.items()]


def _role(role: str, infos: list[TensorInfo], expert_share: float | None, tied: bool) -> RoleReport:
    type_bytes: dict[str, int] = {}
    for info in infos:
        type_bytes[info.quant_type.name] = type_bytes.get(info.quant_type.name, 0) + info.n_bytes
    n_bytes = sum(type_bytes.values())
    token_bytes: int | None = n_bytes
    if role.startswith("exps"):
        token_bytes = None if expert_share is None else round(n_bytes * expert_share)
    elif role == "embed" and not tied:
        token_bytes = sum(row_bytes(info.quant_type, info.n_cols) for info in infos)
    n_weights = sum(math.prod(info.shape) for info in infos)
    return RoleReport(role, len(infos), n_weights, n_bytes, type_bytes, token_bytes)


def _experts(gguf: GGUFModel, config: ModelConfig, store: ExpertStore) -> ExpertReport:
    layers = store.moe_layers()
    per_token = store.total_bytes * config.router.num_experts_per_tok / config.router.num_experts
    return ExpertReport(
        layout=_layout(gguf, layers[0]),
        num_moe_layers=len(layers),
        num_experts=config.router.num_experts,
        num_experts_per_tok=config.router.num_experts_per_tok,
        total_bytes=store.total_bytes,
        one_bytes=max(store.expert_bytes(layer) for layer in layers),
        token_bytes=round(per_token),
    )


def _layout(gguf: GGUFModel, layer: int) -> str:
    if "pearl.format_version" in gguf.metadata and len(gguf.paths) > 1:
        return "pearl shards"
    if f"blk.{layer}.ffn_gate_up_exps.weight" in gguf.tensors:
        return "stacked, gate and up fused"
    return "stacked" if f"blk.{layer}.ffn_gate_exps.weight" in gguf.tensors else "one tensor an expert"


def _floor(gguf: GGUFModel, config: ModelConfig, store: ExpertStore, context: int) -> int:
    """Least bytes of a run with default flags, without the process itself (interpreter and compiled code)."""
    store_bytes = gguf.memory.missing_bytes(wanted_by(config)) if gguf.memory else 0
    needs = FixedNeeds(
        process_bytes=0,
        weight_bytes=non_expert_bytes(gguf, config) + store_bytes,
        kv_bytes=KVCache.planned_bytes(config, context),
        workspace_bytes=workspace_bytes(config, min(RunOptions().ubatch_size, context)),
        context=context,
    )
    return needs.total_bytes + (0 if store_bytes else floor_bytes(ExpertPlaces.of(store).slot_bytes))


def _tokenizer(metadata: Mapping[str, Any]) -> dict[str, Any]:
    tokens = metadata.get("tokenizer.ggml.tokens")
    names = {name: metadata.get(f"tokenizer.ggml.{name}") for name in ("model", "pre")}
    return {
        **{name: value if value is None or isinstance(value, str) else str(value) for name, value in names.items()},
        "vocab_size": len(tokens) if isinstance(tokens, StringArray) else 0,
    }


def _check_tokenizer(tokenizer: Mapping[str, Any]) -> None:
    """Raise the PearlError that using this tokenizer would, as far as its names tell."""
    model = tokenizer["model"]
    if model not in TOKENIZER_MODELS:
        has = f"tokenizer.ggml.model = {str(model)!r} is not supported" if model else "the file holds no tokenizer"
        raise PearlError(f"{has}; supported: {', '.join(TOKENIZER_MODELS)}")
    if model == "gpt2":
        find_pre_tokenizer(tokenizer["pre"])
