"""Experts on their way into one stacked tensor: its name, and one type for all of them."""

from __future__ import annotations

import re

from convert.source import Source
from kernels.quant_types import QuantType, block_bytes, block_size
from models.errors import ConversionError


def settle_stacks(source: Source, types: dict[str, QuantType], unify: bool, notes: list[str]) -> None:
    """Give all experts of a stack the type with the most bits among them where `unify`; else refuse a mixture."""
    stacks: dict[str, set[QuantType]] = {}
    for tensor in source.tensors:
        stacks.setdefault(stack_name(tensor.name), set()).add(types[tensor.name])
    mixed = {name: kinds for name, kinds in stacks.items() if len(kinds) > 1}
    if not mixed:
        return
    first, kinds = next(iter(mixed.items()))
    listing = ", ".join(sorted(kind.name for kind in kinds))
    if not unify:
        raise ConversionError(
            f"{first}: its experts have different types ({listing}), which a stacked tensor cannot express; "
            f"{len(mixed)} tensors are so; --unify stores each in the type with the most bits among its experts"
        )
    widest = {name: max(kinds, key=_bits_per_weight) for name, kinds in mixed.items()}
    for tensor in source.tensors:
        types[tensor.name] = widest.get(stack_name(tensor.name), types[tensor.name])
    notes.append(f"{len(mixed)} stacks have experts of different types, first {first} ({listing}): unified")


def _bits_per_weight(quant_type: QuantType) -> tuple[float, str]:
    return 8 * block_bytes(quant_type) / block_size(quant_type), quant_type.name


def stack_name(name: str) -> str:
    """The stacked tensor that a per-expert tensor belongs to; any other name as it is."""
    return re.sub(r"\.ffn_(gate|up|down)\.\d+\.weight$", r".ffn_\1_exps.weight", name)
