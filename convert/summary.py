"""What a planned conversion will hold, by role: the table of `pearl convert --dry-run`."""

from __future__ import annotations

import math
from dataclasses import dataclass

from convert.gguf_layout import OutputTensor
from convert.plan import Plan
from convert.recipe import role_of
from convert.source import Source
from kernels.quant_types import QuantType


@dataclass(frozen=True, slots=True)
class RoleSummary:
    """All tensors of one role and type. `token_bytes`: bytes that computing one token reads of them."""

    role: str
    quant_type: QuantType
    n_tensors: int
    n_weights: int
    n_bytes: int
    token_bytes: int

    @property
    def bits_per_weight(self) -> float:
        return 8 * self.n_bytes / self.n_weights


def summarize(plan: Plan, source: Source) -> list[RoleSummary]:
    """One entry a role and type, in file order."""
    groups: dict[tuple[str, QuantType], list[OutputTensor]] = {}
    for layout in plan.layouts:
        for tensor in layout.tensors:
            groups.setdefault((role_of(tensor.name), tensor.quant_type), []).append(tensor)
    return [_summary(role, quant_type, tensors, source) for (role, quant_type), tensors in groups.items()]


def _summary(role: str, quant_type: QuantType, tensors: list[OutputTensor], source: Source) -> RoleSummary:
    n_bytes = sum(tensor.n_bytes for tensor in tensors)
    if role.startswith("exps"):
        token_bytes = round(n_bytes * source.experts_used / source.num_experts) if source.num_experts else n_bytes
    elif role == "embed":
        token_bytes = sum(tensor.n_bytes if source.tied else tensor.row_bytes for tensor in tensors)
    else:
        token_bytes = n_bytes
    n_weights = sum(math.prod(tensor.shape) for tensor in tensors)
    return RoleSummary(role, quant_type, len(tensors), n_weights, n_bytes, token_bytes)
