"""From `-m`, `--store` and `--quant` to a model's header: files on the disk as they are, or, for a Hugging Face folder
and on request, shards that will be made in host memory.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from models.config import ModelConfig
from models.errors import UsageError
from models.gguf import GGUFModel
from pearl_cli.options import RunOptions


def open_model(path: Path, options: RunOptions, notify: Callable[[str], None] | None = None) -> GGUFModel:
    """The model at `path` by the flags of `options`; no weight of one in memory is made yet.

    Raises the errors of reading, of planning a conversion, and UsageError for flags that do not fit the input.
    """
    if not wants_ram(path, options):
        return GGUFModel.open(path)
    from convert.open_in_ram import open_in_ram
    from convert.plan import ConvertOptions
    from kernels.cpu.memory import allocate

    return open_in_ram(path, ConvertOptions(quant=options.quant), allocate, notify)


def in_memory_note(model: GGUFModel) -> str | None:
    """What to tell the user of a run whose model is made in memory."""
    if model.memory is None:
        return None
    from convert.shard_writer import size_text

    return f"making {model.paths[0].name} in memory, {size_text(model_bytes(model))}; nothing is written"


def model_bytes(model: GGUFModel) -> int:
    """Bytes of all files of a model, on the disk or in memory."""
    return sum(header.file_bytes for header in model.headers)


def wants_ram(path: Path, options: RunOptions) -> bool:
    """Whether the shards shall lie in host memory. Raises UsageError for flags that contradict each other."""
    is_checkpoint = path.is_dir() and (path / "config.json").is_file()
    if options.store == "disk" and (is_checkpoint or options.quant is not None):
        what = "a Hugging Face folder" if is_checkpoint else "--quant"
        raise UsageError(
            f"--store disk: {what} means a conversion, and here that goes into memory; to have it on the disk: "
            f"pearl convert {path} -o DIR"
        )
    return is_checkpoint or options.quant is not None or options.store == "ram"


def wanted_by(config: ModelConfig) -> Callable[[str], bool]:
    """Which tensors a run needs, by name: all but those of layers that are not computed."""
    return lambda name: not config.is_of_unused_layer(name)


def fill_store(
    model: GGUFModel,
    wanted: Callable[[str], bool],
    threads: int,
    progress: Callable[[str, int, int], None] | None = None,
) -> None:
    """Make the tensors of a model in memory; nothing for one on the disk. `progress("store", done, total)` in bytes."""
    if model.memory is not None:
        told = (lambda done, total: progress("store", done, total)) if progress is not None else None
        model.memory.fill(wanted, threads, told)
