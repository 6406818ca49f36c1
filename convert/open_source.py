"""Which kind of input a path is: a Hugging Face folder, a GGUF file, or a folder that holds one model's GGUF files."""

from __future__ import annotations

import os
from pathlib import Path

from convert.gguf_source import open_gguf
from convert.source import Source
from models.errors import FileError


def open_source(path: Path, allow_unmapped: bool = False, with_vocab: bool = True, pre: str | None = None) -> Source:
    """Open a Hugging Face folder, a GGUF file or any member of a split set.

    `allow_unmapped` leaves tensors that have no GGUF name behind, with a note, instead of refusing; `with_vocab` False
    does without a tokenizer; `pre` names its pre-tokenizer. Raises FileError, CheckpointError, UnsupportedError.
    """
    if path.is_dir():
        ggufs = sorted(path.glob("*.gguf"))
        if ggufs and not (path / "config.json").exists():
            return _open_gguf_folder(path, ggufs, pre)
        from convert.hf_source import open_hf_folder  # a GGUF needs none of what reads Hugging Face's names

        return open_hf_folder(path, allow_unmapped, with_vocab, pre)
    return open_gguf(path, pre)


def _open_gguf_folder(folder: Path, ggufs: list[Path], pre: str | None) -> Source:
    """A folder that holds exactly one model."""
    source = open_gguf(ggufs[0], pre)
    others = set(map(os.path.realpath, ggufs)) - set(map(os.path.realpath, source.paths))
    if others:
        source.close()
        raise FileError(f"{folder}: holds more than one model; name a file, such as {ggufs[0]}")
    return source
