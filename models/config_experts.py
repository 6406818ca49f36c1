"""How a file says that experts are chosen, and how wide the shared one is."""

from __future__ import annotations

from typing import Any

from kernels.router_spec import RouterSpec
from models.config_keys import GATINGS, Architecture
from models.errors import GGUFError, UnsupportedError

MIXER_THRESHOLD = 0.02  # twice the jitter that Phi-3.5-MoE was trained with; no key of a file says it


def shared_width(v: dict[str, Any]) -> int:
    """Width of the shared expert: stated, or so many experts' widths side by side."""
    return int(v.get("shared_intermediate_size", v.get("shared_experts", 0) * v["moe_intermediate_size"]))


def read_router(v: dict[str, Any], table: Architecture, where: str) -> RouterSpec:
    """The rule in the fields `v`. Raises UnsupportedError for an unknown one, GGUFError for one that cannot be."""
    gating = table.gating or GATINGS.get(v["gating"])
    if gating is None:
        names = ", ".join(f"{number} ({name})" for number, name in GATINGS.items())
        raise UnsupportedError(f"{where}: expert_gating_func {v['gating']} is not implemented; supported: {names}")
    if table.experts_per_tok not in (0, v["num_experts_per_tok"]):
        raise UnsupportedError(
            f"{where}: {v['num_experts_per_tok']} experts a token; this architecture's rule ({gating}) is for "
            f"{table.experts_per_tok}"
        )
    num_groups = max(v["num_groups"], 1)
    num_groups_used = v["num_groups_used"] or num_groups
    if v["num_experts"] % num_groups or not 0 < num_groups_used <= num_groups:
        raise GGUFError(
            f"{where}: {num_groups_used} of {num_groups} groups of {v['num_experts']} experts is no possible grouping"
        )
    return RouterSpec(
        num_experts=v["num_experts"],
        num_experts_per_tok=v["num_experts_per_tok"],
        gating=gating,
        norm_topk_prob=v["norm_topk_prob"],
        scale=v["router_scale"] or 1.0,  # 0 means "not set" in files, never "no output"
        num_groups=num_groups,
        num_groups_used=num_groups_used,
        mixer_threshold=MIXER_THRESHOLD if gating == "sparsemixer" else 0.0,
    )
