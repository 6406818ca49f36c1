"""A conversion decided before a byte is written: each output tensor's type, what it is made of, and the files it goes
into.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from convert.gguf_layout import FileLayout, OutputTensor
from convert.gguf_metadata import Metadata
from convert.identity import fingerprint, set_id
from convert.imatrix import ImportanceMatrix, named_imatrix
from convert.mixes import MixFacts, value_layers
from convert.quantize import F16_MAX
from convert.recipe import Recipe, parse_recipe
from convert.shard_plan import DEFAULT_SHARD_BYTES, SET_ID_KEY, expert_of, plan_pearl_set, plan_stock_file
from convert.source import Source, SourceTensor
from convert.stacks import settle_stacks, stack_name
from kernels.quant_types import QuantType
from models.errors import UsageError

_PLAIN = (QuantType.F32, QuantType.F16, QuantType.BF16)
_SCAN_WEIGHTS = 1 << 21


@dataclass(frozen=True, slots=True)
class ConvertOptions:
    """How to convert. `quant` and `recipe` are as on the command line (None: types stay); `shard_bytes` None is the
    default; `expert_order` gives each layer's experts in file order (None: by number); `in_ram`: the files' paths are
    names only, nothing is written there.
    """

    quant: str | None = None
    recipe: str | None = None
    merge: bool = False
    shard_bytes: int | None = None
    allow_requantize: bool = False
    allow_unmapped: bool = False
    with_vocab: bool = True
    pre: str | None = None
    threads: int = 0
    imatrix: Path | None = None
    unify: bool = False
    consume: bool = False
    expert_order: tuple[tuple[int, ...], ...] | None = None
    in_ram: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """`parts` gives, by output tensor name, the source tensors whose rows follow each other in it."""

    layouts: list[FileLayout]
    parts: dict[str, list[SourceTensor]]
    fingerprint: str
    notes: list[str]
    imatrix: ImportanceMatrix | None = None


def plan_conversion(source: Source, out: Path, options: ConvertOptions) -> Plan:
    """Decide everything. `out` is a directory, or with `merge` may be a .gguf path.

    Raises UsageError for options that contradict the input, ConversionError for types that it cannot be given.
    """
    recipe = parse_recipe(options.quant, options.recipe)
    if not source.is_gguf:
        packed = _packed_types(source)
        recipe.keeps = frozenset() if options.allow_requantize else packed
        if recipe.default is None:
            recipe.default = _usual_type(source)
            recipe.named_after = min(packed, default=None)
    recipe.facts = _mix_facts(source)
    notes: list[str] = []
    types = _choose_types(source, recipe, notes)
    if options.merge:
        settle_stacks(source, types, options.unify, notes)
    if not options.allow_requantize:
        _refuse_requantizing(source, types, options.unify)
    metadata = source.metadata.copy()
    file_type = recipe.file_type()
    if file_type is not None:
        metadata.u32("general.file_type", file_type)
    outputs, parts = _outputs(source, types, options.merge)
    imatrix = None if options.imatrix is None else _read_importances(options.imatrix, source, types, metadata, notes)
    _check_order(source, options)
    extra = f"{'' if imatrix is None else imatrix.digest} {options.expert_order or ''}"
    metadata.string(SET_ID_KEY, set_id(source, metadata, outputs, extra))
    layouts = _lay_out(source, recipe, out, options, metadata, outputs)
    if not source.is_gguf and not options.in_ram:
        _check_runs(layouts, source, options.merge, notes)
    return Plan(layouts, parts, fingerprint(source, layouts), notes + recipe.notes(), imatrix)


def _stored_type(tensor: SourceTensor) -> QuantType:
    """The GGUF type of the stored weights; BF16 for 8-bit floats, which GGUF does not know."""
    return QuantType.BF16 if tensor.rows.quant_type is None else tensor.rows.quant_type


def _packed_types(source: Source) -> frozenset[QuantType]:
    """The types of weights that a checkpoint ships quantised."""
    return frozenset(_stored_type(tensor) for tensor in source.tensors) - set(_PLAIN)


def _usual_type(source: Source) -> QuantType:
    """The type most of the checkpoint's weights have that are plain numbers."""
    weights: Counter[QuantType] = Counter()
    for tensor in source.tensors:
        if len(tensor.shape) > 1 and _stored_type(tensor) in _PLAIN:
            weights[_stored_type(tensor)] += tensor.rows.n_rows * tensor.rows.n_cols
    return weights.most_common(1)[0][0]


def _read_importances(
    path: Path, source: Source, types: dict[str, QuantType], metadata: Metadata, notes: list[str]
) -> ImportanceMatrix:
    """The importance matrix at `path`, checked against the model; what it leaves open is noted."""
    from kernels.cpu.quantize import WEIGHTED_TYPES

    imatrix = named_imatrix(path)
    found = {tensor.name: imatrix.rows_for(tensor.name, tensor.shape) for tensor in source.tensors}
    converted = [t.name for t in source.tensors if types[t.name] is not t.rows.quant_type]
    searched = [name for name in converted if types[name] in WEIGHTED_TYPES]
    if all(rows is None for rows in found.values()):
        raise UsageError(f"--imatrix {path}: holds nothing for this model; its first entry is {min(imatrix.entries)}")
    without = [name for name in searched if found[name] is None]
    if not searched:
        weighted = ", ".join(sorted(kind.name for kind in WEIGHTED_TYPES))
        notes.append(f"--imatrix changes nothing: no matrix is converted to a type that it is for ({weighted})")
    if without:
        notes.append(f"--imatrix has nothing for {len(without)} of {len(searched)} matrices, first {without[0]}")
    imatrix.add_metadata(metadata)
    return imatrix


def _mix_facts(source: Source) -> MixFacts:
    def number(key: str) -> int:
        return source.metadata.integer(f"{source.architecture}.{key}") or 0

    heads, kv_heads = number("attention.head_count"), number("attention.head_count_kv")
    layers = value_layers(tensor.name for tensor in source.tensors)
    return MixFacts(number("block_count"), source.num_experts, heads // kv_heads if kv_heads else 0, layers)


def _choose_types(source: Source, recipe: Recipe, notes: list[str]) -> dict[str, QuantType]:
    """The type of every tensor by name. Adds to `notes` what F16 was asked for and cannot hold."""
    types, beyond = {}, []
    for tensor in source.tensors:
        stored = tensor.rows.quant_type
        chosen = recipe.type_for(tensor.name, tensor.shape[0], len(tensor.shape), _stored_type(tensor), source.tied)
        if chosen is QuantType.F16 and stored is not QuantType.F16 and _exceeds_f16(tensor):
            chosen = stored if stored in (QuantType.BF16, QuantType.F32) else QuantType.F32
            beyond.append(f"{tensor.name} as {chosen.name}")
        types[tensor.name] = chosen
    if beyond:
        names = ", ".join(beyond[:8]) + (f" and {len(beyond) - 8} more" if len(beyond) > 8 else "")
        notes.append(f"{len(beyond)} tensors have weights beyond {F16_MAX:g}, which F16 cannot hold; kept: {names}")
    return types


def _exceeds_f16(tensor: SourceTensor) -> bool:
    """Whether a weight is beyond F16's range; reads the tensor once, a piece at a time."""
    rows = tensor.rows
    at_once = max(1, _SCAN_WEIGHTS // rows.n_cols)
    return any(
        bool((np.abs(rows.floats(first, min(at_once, rows.n_rows - first))) > F16_MAX).any())
        for first in range(0, rows.n_rows, at_once)
    )


def _refuse_requantizing(source: Source, types: dict[str, QuantType], unify: bool) -> None:
    """`unify`: experts may change their type, that was asked for."""
    changed = [
        f"{tensor.name} ({stored.name} to {types[tensor.name].name})"
        for tensor in source.tensors
        if (stored := tensor.rows.quant_type) is not None
        and stored not in _PLAIN
        and types[tensor.name] is not stored
        and not (unify and expert_of(tensor.name) is not None)
    ]
    if changed:
        raise UsageError(
            f"{len(changed)} tensors are already quantised to another type, first {changed[0]}; quantising twice loses "
            "quality: convert the original, or force it with --allow-requantize"
        )


def _outputs(
    source: Source, types: dict[str, QuantType], merge: bool
) -> tuple[list[OutputTensor], dict[str, list[SourceTensor]]]:
    """The output tensors in file order and what each is made of; with `merge` experts are stacked."""
    if not merge:
        outputs = [OutputTensor(tensor.name, tensor.shape, types[tensor.name]) for tensor in source.tensors]
        return outputs, {tensor.name: [tensor] for tensor in source.tensors}
    parts: dict[str, list[SourceTensor]] = {}
    for tensor in source.tensors:
        parts.setdefault(stack_name(tensor.name), []).append(tensor)
    outputs = []
    for name, members in parts.items():
        members.sort(key=lambda tensor: expert_of(tensor.name) or (0, 0, 0))
        is_stack = expert_of(members[0].name) is not None
        shape = (*members[0].shape, len(members)) if is_stack else members[0].shape
        outputs.append(OutputTensor(name, shape, types[members[0].name]))
    return outputs, parts


def _check_order(source: Source, options: ConvertOptions) -> None:
    """Refuse an order of experts that is not this model's, or that a stacked tensor cannot have."""
    order = options.expert_order
    if order is None:
        return
    if options.merge:
        raise UsageError("--order: the experts of a stacked tensor lie by number; leave out --merge")
    layers = 1 + max((expert[0] for tensor in source.tensors if (expert := expert_of(tensor.name))), default=-1)
    if len(order) < layers or any(sorted(row) != list(range(source.num_experts)) for row in order):
        raise UsageError(
            f"--order: the trace is of {len(order)} layers of {len(order[0]) if order else 0} experts, this model has "
            f"{layers} of {source.num_experts}"
        )


def _check_runs(layouts: list[FileLayout], source: Source, merge: bool, notes: list[str]) -> None:
    """Raise what a run would raise; a stock file may be meant for other programs, so there it is only noted."""
    from convert.check_runs import check_runs  # what reads configs; a GGUF is not asked

    error = check_runs(layouts, source.paths[0].parent)
    if error is None:
        return
    if not merge:
        raise error
    notes.append(f"pearl will not run the file: {error}")


def names_a_file(out: Path) -> bool:
    """Whether `out` says what the one file that is to be made is called, not in which directory."""
    return out.suffix == ".gguf" and not os.path.isdir(out)


def _lay_out(
    source: Source, recipe: Recipe, out: Path, options: ConvertOptions, metadata: Metadata, outputs: list[OutputTensor]
) -> list[FileLayout]:
    label = recipe.label()
    name = source.name if not label or source.name.lower().endswith(label.lower()) else f"{source.name}-{label}"
    directory = out
    is_file = not options.in_ram and os.path.exists(out) and not os.path.isdir(out)  # no OSError for odd names
    if is_file and not options.merge:
        raise UsageError(f"-o {out}: is a file; a pearl model is several files, give a directory")
    if is_file and not names_a_file(out):
        raise UsageError(f"-o {out}: is a file; give a directory, or a name that ends in .gguf")
    if names_a_file(out):
        if not options.merge:
            raise UsageError(
                f"-o {out}: a pearl model is several files; give a directory (or --merge for one stock GGUF)"
            )
        directory, name = out.parent, out.stem
    if options.merge:
        layouts = plan_stock_file(directory, name, metadata, outputs, options.shard_bytes)
    else:
        layouts = plan_pearl_set(
            directory, name, metadata, outputs, options.shard_bytes or DEFAULT_SHARD_BYTES, options.expert_order
        )
    inputs = set() if options.in_ram else {os.path.realpath(path) for path in source.paths}
    overwritten = [layout.path for layout in layouts if os.path.realpath(layout.path) in inputs]
    if overwritten:
        raise UsageError(f"{overwritten[0]}: is part of the input; choose another output directory")
    return layouts
