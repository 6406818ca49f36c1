"""A model of a known shape with random weights: for measuring speed without downloading anything. It says nothing
sensible.

The same seed gives the same weights in the pearl layout and as one stock stacked GGUF (which llama.cpp loads too).
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import os
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from convert.gguf_layout import OutputTensor
from convert.gguf_metadata import Metadata
from convert.mixes import MixFacts, value_layers
from convert.model_metadata import ModelDims, add_model_keys
from convert.random_blocks import SUPPORTED, random_rows
from convert.recipe import Recipe, parse_recipe
from convert.shard_plan import DEFAULT_SHARD_BYTES, SET_ID_KEY, plan_pearl_set, plan_stock_file
from convert.shard_writer import Progress, size_text, write_files
from convert.source import LINEARS, expert_name
from convert.stream import Job
from convert.synth_shapes import SHAPES, Shape
from convert.synth_vocab import add_byte_level_vocab, add_sentencepiece_vocab
from convert.tensor_table import expert_shape, has_experts, layer_shapes, outer_shapes
from kernels.quant_types import QuantType
from models.errors import DiskFullError, UnsupportedQuantType, UsageError

LAYOUTS = ("pearl", "stacked")
_CHUNK_BYTES = 8 << 20


def synthesize(
    shape: str | Shape,
    out_dir: Path,
    quant: str,
    progress: Progress | None = None,
    *,
    layout: str = "pearl",
    num_layers: int | None = None,
    seed: int = 0,
    shard_bytes: int = DEFAULT_SHARD_BYTES,
) -> Path:
    """Write a random model of `shape` (a name of SHAPES, or sizes of one's own) and return the path to open.

    `num_layers` shortens the model. Raises UsageError, UnsupportedQuantType, DiskFullError, ConversionError.
    """
    sizes = _known_shape(shape) if isinstance(shape, str) else shape
    name = shape if isinstance(shape, str) else f"synth-{sizes.dims.architecture}"
    if num_layers is not None:
        _check_room(sizes, num_layers, quant, out_dir)
        sizes = _with_layers(sizes, num_layers)
    recipe = _recipe(sizes, quant)
    name = f"{name}-{quant.lower()}" + ("-stacked" if layout == "stacked" else "")
    metadata = _metadata(name, sizes)
    metadata.u32("general.file_type", recipe.file_type() or 0)
    stacked = layout == "stacked"
    tensors = [_output(recipe, sizes, tensor, size) for tensor, size in _tensors(sizes, stacked)]
    _refuse_types({tensor.quant_type for tensor in tensors}, quant)
    fingerprint = f"synth {name} {sizes} seed {seed}"
    metadata.string(SET_ID_KEY, hashlib.sha256(fingerprint.encode()).hexdigest()[:32])
    if layout == "stacked":
        layouts = plan_stock_file(out_dir, name, metadata, tensors)
    else:
        layouts = plan_pearl_set(out_dir, name, metadata, tensors, shard_bytes)
    return write_files(layouts, partial(_jobs, sizes=sizes, seed=seed), fingerprint, os.cpu_count() or 1, progress)


def _known_shape(name: str) -> Shape:
    if name not in SHAPES:
        raise UsageError(f"no shape '{name}'; known shapes: {', '.join(SHAPES)}")
    return SHAPES[name]


def _recipe(shape: Shape, quant: str) -> Recipe:
    recipe, dims = parse_recipe(quant, None), shape.dims
    layers = value_layers(name for name, _ in _tensors(shape, stacked=True))
    heads_per_kv = dims.num_heads // dims.num_kv_heads if 0 in layers else 0
    recipe.facts = MixFacts(dims.num_layers, dims.num_experts, heads_per_kv, layers)
    return recipe


def _output(recipe: Recipe, shape: Shape, name: str, size: tuple[int, ...]) -> OutputTensor:
    return OutputTensor(name, size, recipe.type_for(name, size[0], len(size), QuantType.F32, shape.tied))


def _check_room(shape: Shape, num_layers: int, quant: str, out_dir: Path) -> None:
    """Raises DiskFullError for more layers than `shape` has where even its smallest are too many bytes, before so many
    are listed; what an earlier run left will be written over.
    """
    dims = shape.dims
    if num_layers <= dims.num_layers:
        return
    recipe = _recipe(shape, quant)
    layers = range(dims.leading_dense or 0, dims.num_layers)
    least = num_layers * min(
        sum(_output(recipe, shape, name, size).n_bytes for name, size in _layer_tensors(dims, layer, stacked=True))
        for layer in layers
    )
    folder = out_dir.absolute()
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free + sum(path.stat().st_size for path in out_dir.glob("*.partial"))
    if least > free:
        raise DiskFullError(
            f"{out_dir}: no space: --layers {num_layers} needs at least {size_text(least)}, have {size_text(free)}; "
            "nothing was written"
        )


def _with_layers(shape: Shape, num_layers: int) -> Shape:
    fewest = 1 + (shape.dims.leading_dense or 0)
    if num_layers < fewest:
        raise UsageError(f"--layers {num_layers}: this model has at least {fewest}, so that one has experts")
    dims, net, mamba = shape.dims, shape.dims.delta_net, shape.dims.mamba
    return dataclasses.replace(
        shape,
        dims=dataclasses.replace(
            dims,
            num_layers=num_layers,
            window_layers=_resized(dims.window_layers, num_layers) if dims.window_layers is not None else None,
            conv_layers=_resized(dims.conv_layers, num_layers),
            delta_net=dataclasses.replace(net, layers=_resized(net.layers, num_layers)) if net is not None else None,
            mamba=dataclasses.replace(mamba, layers=_resized(mamba.layers, num_layers)) if mamba is not None else None,
        ),
    )


def _resized(layers: tuple[bool, ...], n: int) -> tuple[bool, ...]:
    """Which of `n` layers are of a kind: as in the whole model, and the same pattern again beyond it."""
    return tuple(layers[i % len(layers)] for i in range(n)) if layers else layers


def _refuse_types(types: set[QuantType], quant: str) -> None:
    beyond = sorted(target.name for target in types if target not in SUPPORTED)
    if beyond:
        name = quant if quant.upper() in beyond else beyond[0]
        raise UnsupportedQuantType(name, [target.name for target in SUPPORTED], f"synth --quant {quant}")


def _metadata(name: str, shape: Shape) -> Metadata:
    metadata = Metadata()
    metadata.string("general.architecture", shape.dims.architecture)
    metadata.string("general.name", name)
    metadata.u32("general.quantization_version", 2)
    add_model_keys(metadata, shape.dims)
    if shape.pre_tokenizer == "spm":
        add_sentencepiece_vocab(metadata, shape.dims.vocab_size)
    else:
        add_byte_level_vocab(metadata, shape.dims.vocab_size, shape.pre_tokenizer)
    return metadata


def _tensors(shape: Shape, stacked: bool) -> Iterator[tuple[str, tuple[int, ...]]]:
    """(name, ggml shape) of every tensor in file order."""
    dims = shape.dims
    outer = {name: tuple(reversed(size)) for name, size in outer_shapes(dims).items()}
    yield "token_embd.weight", outer.pop("token_embd.weight")
    for layer in range(dims.num_layers):
        yield from _layer_tensors(dims, layer, stacked)
    yield from ((name, size) for name, size in outer.items() if name != "output.weight" or not shape.tied)


def _layer_tensors(dims: ModelDims, layer: int, stacked: bool) -> Iterator[tuple[str, tuple[int, ...]]]:
    blk = f"blk.{layer}"
    for name, size in layer_shapes(dims, layer).items():
        yield f"{blk}.{name}", tuple(reversed(size))
    if not has_experts(dims, layer):
        return
    for linear in LINEARS:
        n_rows, n_cols = expert_shape(dims, linear)
        if stacked:
            yield f"{blk}.ffn_{linear}_exps.weight", (n_cols, n_rows, dims.num_experts)
        else:
            yield from ((expert_name(layer, e, linear), (n_cols, n_rows)) for e in range(dims.num_experts))


def _jobs(tensor: OutputTensor, *, sizes: Shape, seed: int) -> list[Job]:
    """The jobs that make `tensor`; a stacked tensor is the same per-expert tensors one after another."""
    scaling = sizes.dims.rope_scaling
    if scaling is not None and tensor.name in scaling.tensors:
        values = scaling.tensors[tensor.name]
        return [lambda: np.array(values, dtype=np.float32).view(np.uint8)]
    if tensor.name.endswith(".ssm_a"):  # heads that hardly forget, and heads that forget at once
        return [lambda: -np.geomspace(0.05, 8.0, math.prod(tensor.shape), dtype=np.float32).view(np.uint8)]
    if "scale" in tensor.name or ("norm" in tensor.name and not tensor.name.endswith(".bias")):
        return [lambda: np.ones(math.prod(tensor.shape), dtype=np.float32).view(np.uint8)]
    if tensor.name.endswith("_exps.weight"):
        stem = tensor.name.removesuffix("_exps.weight")
        one = OutputTensor(stem, tensor.shape[:2], tensor.quant_type)
        names = [f"{stem}.{expert}.weight" for expert in range(sizes.dims.num_experts)]
        return [job for name in names for job in _matrix_jobs(dataclasses.replace(one, name=name), seed)]
    return _matrix_jobs(tensor, seed)


def _matrix_jobs(tensor: OutputTensor, seed: int) -> list[Job]:
    n_cols, n_rows = tensor.shape[0], tensor.n_rows
    rows_at_once = max(1, _CHUNK_BYTES // tensor.row_bytes)
    std = (
        1.0 if tensor.name == "token_embd.weight" else n_cols**-0.5
    )  # normed inputs then give router logits a spread of 1

    def make(first: int) -> NDArray[np.uint8]:
        n = min(rows_at_once, n_rows - first)
        return random_rows(tensor.name, first, n, n_cols, tensor.quant_type, std, seed)

    return [partial(make, first) for first in range(0, n_rows, rows_at_once)]
