"""A model of a known shape with random weights: for measuring speed without downloading anything. It says nothing
sensible.

The same seed gives the same weights in the pearl layout and as one stock stacked GGUF (which llama.cpp loads too).
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from convert.gguf_layout import OutputTensor
from convert.gguf_metadata import Metadata
from convert.model_metadata import ModelDims, add_model_keys
from convert.random_blocks import SUPPORTED, random_rows
from convert.recipe import parse_recipe
from convert.shard_plan import DEFAULT_SHARD_BYTES, plan_pearl_set, plan_stock_file
from convert.shard_writer import Progress, write_files
from convert.stream import Job
from convert.synth_shapes import SHAPES, Shape
from convert.synth_vocab import add_byte_level_vocab, add_sentencepiece_vocab
from kernels.quant_types import QuantType
from models.errors import UnsupportedQuantType, UsageError

LAYOUTS = ("pearl", "stacked")
_CHUNK_BYTES = 8 << 20
_LINEARS = ("gate", "up", "down")


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
    name, sizes = (shape, _known_shape(shape)) if isinstance(shape, str) else (f"synth-{shape.architecture}", shape)
    if num_layers is not None:
        if num_layers < 1:
            raise UsageError(f"--layers {num_layers}: a model has at least one layer")
        sizes = dataclasses.replace(sizes, num_layers=num_layers)
    recipe = parse_recipe(quant, None)
    if recipe.default not in SUPPORTED:
        raise UnsupportedQuantType(quant, [target.name for target in SUPPORTED], "synth")
    name = f"{name}-{quant.lower()}" + ("-stacked" if layout == "stacked" else "")
    metadata = _metadata(name, sizes)
    metadata.u32("general.file_type", recipe.file_type() or 0)
    tensors = [
        OutputTensor(tensor, dims, recipe.type_for(tensor, dims[0], len(dims), QuantType.F32, tied=False))
        for tensor, dims in _tensors(sizes, stacked=layout == "stacked")
    ]
    if layout == "stacked":
        layouts = plan_stock_file(out_dir, name, metadata, tensors)
    else:
        layouts = plan_pearl_set(out_dir, name, metadata, tensors, shard_bytes)
    fingerprint = f"synth {name} {sizes} seed {seed}"
    return write_files(layouts, partial(_jobs, sizes=sizes, seed=seed), fingerprint, os.cpu_count() or 1, progress)


def _known_shape(name: str) -> Shape:
    if name not in SHAPES:
        raise UsageError(f"no shape '{name}'; known shapes: {', '.join(SHAPES)}")
    return SHAPES[name]


def _metadata(name: str, shape: Shape) -> Metadata:
    metadata = Metadata()
    metadata.string("general.architecture", shape.architecture)
    metadata.string("general.name", name)
    metadata.u32("general.quantization_version", 2)
    qwen_dense_width = shape.moe_intermediate_size * shape.num_experts_per_tok  # unused: the shape has no dense layer
    dims = ModelDims(
        architecture=shape.architecture,
        hidden_size=shape.hidden_size,
        num_layers=shape.num_layers,
        num_heads=shape.num_heads,
        num_kv_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        intermediate_size=qwen_dense_width if shape.architecture == "qwen3moe" else shape.moe_intermediate_size,
        moe_intermediate_size=shape.moe_intermediate_size,
        num_experts=shape.num_experts,
        num_experts_per_tok=shape.num_experts_per_tok,
        vocab_size=shape.vocab_size,
        context_length=shape.context_length,
        rope_theta=shape.rope_theta,
        rms_norm_eps=shape.rms_norm_eps,
    )
    add_model_keys(metadata, dims)
    if shape.pre_tokenizer == "spm":
        add_sentencepiece_vocab(metadata, shape.vocab_size)
    else:
        add_byte_level_vocab(metadata, shape.vocab_size, shape.pre_tokenizer)
    return metadata


def _tensors(shape: Shape, stacked: bool) -> Iterator[tuple[str, tuple[int, ...]]]:
    """(name, ggml shape) of every tensor in file order."""
    hidden, query, key = shape.hidden_size, shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    yield "token_embd.weight", (hidden, shape.vocab_size)
    for layer in range(shape.num_layers):
        blk = f"blk.{layer}"
        yield f"{blk}.attn_norm.weight", (hidden,)
        yield f"{blk}.attn_q.weight", (hidden, query)
        yield f"{blk}.attn_k.weight", (hidden, key)
        yield f"{blk}.attn_v.weight", (hidden, key)
        if shape.qk_norm != "none":
            per_head = shape.qk_norm == "head"
            yield f"{blk}.attn_q_norm.weight", (shape.head_dim if per_head else query,)
            yield f"{blk}.attn_k_norm.weight", (shape.head_dim if per_head else key,)
        yield f"{blk}.attn_output.weight", (query, hidden)
        yield f"{blk}.ffn_norm.weight", (hidden,)
        yield f"{blk}.ffn_gate_inp.weight", (hidden, shape.num_experts)
        for linear in _LINEARS:
            dims = _expert_dims(shape, linear)
            if stacked:
                yield f"{blk}.ffn_{linear}_exps.weight", (*dims, shape.num_experts)
            else:
                yield from ((f"{blk}.ffn_{linear}.{e}.weight", dims) for e in range(shape.num_experts))
    yield "output_norm.weight", (hidden,)
    yield "output.weight", (hidden, shape.vocab_size)


def _expert_dims(shape: Shape, linear: str) -> tuple[int, int]:
    wide = (shape.hidden_size, shape.moe_intermediate_size)
    return wide if linear != "down" else (wide[1], wide[0])


def _jobs(tensor: OutputTensor, *, sizes: Shape, seed: int) -> list[Job]:
    """The jobs that make `tensor`; a stacked tensor is the same per-expert tensors one after another."""
    if "norm" in tensor.name:
        return [lambda: np.ones(tensor.shape[0], dtype=np.float32).view(np.uint8)]
    if tensor.name.endswith("_exps.weight"):
        stem = tensor.name.removesuffix("_exps.weight")
        one = OutputTensor(stem, tensor.shape[:2], tensor.quant_type)
        names = [f"{stem}.{expert}.weight" for expert in range(sizes.num_experts)]
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
