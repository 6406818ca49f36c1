"""The texts that `pearl trace` runs: one a file, or one a line of a .jsonl file, as token ids."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from models.chat_template import ChatTemplate
from models.errors import FileError, UsageError
from models.tokenizer import Tokenizer
from pearl_cli.text_file import read_text


def read_texts(paths: Sequence[Path]) -> Iterator[tuple[str, Any]]:
    """(where, text or list of messages). A line of a .jsonl file is a JSON string, a list of chat messages, or an
    object with one of them under "messages" or "text". Raises FileError.
    """
    for path in paths:
        if path.suffix != ".jsonl":
            yield str(path), read_text(path)
            continue
        for number, line in enumerate(read_text(path).split("\n"), 1):  # other line ends may stand in a string
            if not line.strip():
                continue
            where = f"{path}: line {number}"
            try:
                entry = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise FileError(f"{where} is not JSON: {error}") from error
            if isinstance(entry, dict):
                entry = entry.get("messages", entry.get("text"))
            if not (isinstance(entry, str) or _is_messages(entry)):
                raise FileError(f"{where} holds no text; give a JSON string or messages with role and content")
            yield where, entry


def _is_messages(entry: Any) -> bool:
    return (
        isinstance(entry, list)
        and bool(entry)
        and all(isinstance(m, dict) and isinstance(m.get("role"), str) and "content" in m for m in entry)
    )


def encode_text(entry: Any, tokenizer: Tokenizer, template: ChatTemplate | None, where: str) -> list[int]:
    """Ids of one text. With a template a plain text is a user's message waiting for its answer, a list of messages is
    rendered as it stands. Raises UsageError for messages without a template.
    """
    if isinstance(entry, str):
        if template is None:
            return tokenizer.encode_prompt(entry)
        return template.encode(tokenizer, [{"role": "user", "content": entry}])
    if template is None:
        raise UsageError(f"{where} holds chat messages; add --chat to render them by the model's template")
    waits = entry[-1]["role"] == "user"
    return template.encode(tokenizer, entry, add_generation_prompt=waits)
