"""Options of a conversion that mean nothing for the source at hand, or beside each other: refused, not passed over."""

from __future__ import annotations

from pathlib import Path

from convert.plan import ConvertOptions
from convert.source import Source
from models.errors import UsageError


def check_options(path: Path, source: Source, options: ConvertOptions) -> None:
    """`path`: of `source`, as the user gave it. Raises UsageError."""
    if source.is_gguf:
        for flag, is_given, reason in (
            ("--no-vocab", not options.with_vocab, "whose tokenizer is taken over as it is"),
            ("--allow-unmapped", options.allow_unmapped, "whose tensors keep their names"),
            ("--consume", options.consume, "and only weight files of a Hugging Face folder are deleted"),
        ):
            if is_given:
                raise UsageError(f"{flag}: {path} is a GGUF, {reason}; leave it out")
    elif options.pre is not None and not options.with_vocab:
        raise UsageError(f"--pre {options.pre} is about the tokenizer that --no-vocab leaves out; give one of them")
