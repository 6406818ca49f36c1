"""A Hugging Face folder as a conversion source: tensors under GGUF names, experts one by one, metadata from its JSON
files.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from convert.checkpoint_folder import find_tensors, read_json, unlisted_files
from convert.gguf_metadata import Metadata
from convert.hf_config import HfConfig
from convert.hf_sampling import add_sampling
from convert.hf_stored_rows import StoredRows
from convert.hf_template import add_chat_template
from convert.hf_tensors import HfTensors
from convert.hf_tokenizer import add_tokenizer
from convert.model_metadata import ModelDims
from convert.rows import Rows
from convert.source import Source, SourceTensor
from convert.tensor_table import layer_shapes
from models.errors import CheckpointError, UnsupportedError

_COMPARE_ROWS = 1024


def open_hf_folder(
    folder: Path, allow_unmapped: bool = False, with_vocab: bool = True, pre: str | None = None
) -> Source:
    """Open the checkpoint in `folder`. Raises CheckpointError, UnsupportedError, UnsupportedTokenizer."""
    values = read_json(folder, "config.json", required=True)
    assert values is not None
    stored = find_tensors(folder)
    config = HfConfig(folder, values)
    n_layers = config.integer("num_hidden_layers")
    if n_layers > len(stored):  # before as many are gone through
        raise CheckpointError(
            f"{config.path}: num_hidden_layers is {n_layers}, and the weight files hold {len(stored)} tensors in all"
        )
    dims = config.dims()
    metadata = Metadata()
    metadata.string("general.architecture", config.architecture)
    metadata.string("general.name", folder.resolve().name)
    metadata.u32("general.quantization_version", 2)
    config.add_metadata(metadata)
    add_sampling(metadata, folder)
    builder = HfTensors(folder, dims, StoredRows(stored, _fp8_block(config)), config.unused_layers)
    tensors = builder.build(allow_unmapped)
    notes = config.notes + builder.notes
    unlisted = unlisted_files(folder, {tensor.path for tensor in stored.values()})
    if unlisted:
        notes.append(f"left aside, the checkpoint's index does not name them: {', '.join(unlisted)}")
    tied = _settle_output(tensors, config.flag("tie_word_embeddings"), notes)
    if with_vocab:
        notes += add_tokenizer(metadata, folder, config.values, dims.vocab_size, pre)
        if not add_chat_template(metadata, folder):
            notes.append("the folder has no chat template; chatting needs --template")
    return Source(
        name=folder.resolve().name,
        architecture=config.architecture,
        metadata=metadata,
        tensors=_in_file_order(tensors, dims),
        tied=tied,
        is_gguf=False,
        paths=sorted({tensor.path for tensor in stored.values()}),
        num_experts=dims.num_experts,
        experts_used=dims.num_experts_per_tok,
        notes=notes,
        close=builder.close,
    )


def open_remains(folder: Path) -> Source:
    """What is left of a folder whose weight files are being deleted: its tensors, without metadata. Raises
    CheckpointError, UnsupportedError.
    """
    values = read_json(folder, "config.json", required=True)
    assert values is not None
    config = HfConfig(folder, values)
    dims = config.dims()
    stored = find_tensors(folder, whole=False)
    builder = HfTensors(folder, dims, StoredRows(stored, _fp8_block(config)), config.unused_layers)
    return Source(
        name=folder.resolve().name,
        architecture=config.architecture,
        metadata=Metadata(),
        tensors=builder.build(allow_unmapped=True, whole=False),
        tied=False,
        is_gguf=False,
        paths=sorted({tensor.path for tensor in stored.values()}),
        num_experts=dims.num_experts,
        experts_used=dims.num_experts_per_tok,
        close=builder.close,
    )


def _fp8_block(config: HfConfig) -> tuple[int, int]:
    """Rows and columns that share an 8-bit float scale. Raises UnsupportedError for other quantised checkpoints."""
    quantization = config.values.get("quantization_config")
    if quantization is None:
        return (128, 128)
    method = quantization.get("quant_method") if isinstance(quantization, dict) else quantization
    if method == "mxfp4":  # blocks and scales in tensors of their own, whatever else the section says
        return (128, 128)
    if method != "fp8":
        raise UnsupportedError(
            f"{config.path}: quantised by {method!r}; supported: fp8 with block scales, mxfp4, or plain weights"
        )
    block = quantization.get("weight_block_size", [128, 128])
    if not isinstance(block, list) or len(block) != 2 or not all(type(n) is int and n > 0 for n in block):
        raise UnsupportedError(f"{config.path}: weight_block_size {block!r} is not supported; two whole numbers are")
    return (block[0], block[1])


def _settle_output(tensors: list[SourceTensor], declared_tied: bool | None, notes: list[str]) -> bool:
    """Whether the embedding doubles as the output matrix. An output matrix equal to it is taken out of `tensors`."""
    embed = next(tensor for tensor in tensors if tensor.name == "token_embd.weight")
    output = next((tensor for tensor in tensors if tensor.name == "output.weight"), None)
    if output is None:
        if declared_tied is False:
            notes.append(
                "config.json says that the embedding is not tied, but there is no lm_head: the embedding is used"
            )
        return True
    if not _equal(embed.rows, output.rows):
        if declared_tied:
            notes.append("config.json says that the embedding is tied, but lm_head differs from it: lm_head is used")
        return False
    tensors.remove(output)
    notes.append("lm_head equals the embedding and is stored once")
    return True


def _equal(left: Rows, right: Rows) -> bool:
    if left.quant_type is None or left.quant_type is not right.quant_type or left.n_rows != right.n_rows:
        return False
    starts = range(0, left.n_rows, _COMPARE_ROWS)
    sizes = [min(_COMPARE_ROWS, left.n_rows - start) for start in starts]
    return all(np.array_equal(left.raw(at, n), right.raw(at, n)) for at, n in zip(starts, sizes, strict=True))


def _in_file_order(tensors: list[SourceTensor], dims: ModelDims) -> list[SourceTensor]:
    """Embedding, layers in the order they compute, output; a layer's experts last."""
    order = {
        f"blk.{layer}.{name}": (layer, index, 0)
        for layer in range(dims.num_layers)
        for index, name in enumerate(layer_shapes(dims, layer))
    }
    order |= {"token_embd.weight": (-1, 0, 0), "output_norm.weight": (dims.num_layers, 0, 0)}

    def key(tensor: SourceTensor) -> tuple[int, int, int]:
        parts = tensor.name.split(".")
        if tensor.name in order:
            return order[tensor.name]
        is_expert = parts[0] == "blk"
        return (int(parts[1]), 1 << 30, int(parts[3])) if is_expert else (dims.num_layers, 1, 0)

    return sorted(tensors, key=key)
