"""The token ids of what is to be evaluated: texts of `read_texts`, one after the other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from models.chat_template import ChatTemplate
from models.tokenizer import Tokenizer
from pearl_cli.trace_texts import encode_text


def ids_of(texts: Iterable[tuple[str, Any]], tokenizer: Tokenizer, metadata: Mapping[str, Any]) -> list[int]:
    """Texts are taken as they are, lists of chat messages rendered by the model's template. Raises TemplateError."""
    template: ChatTemplate | None = None
    ids: list[int] = []
    for where, entry in texts:
        if not isinstance(entry, str) and template is None:
            template = ChatTemplate.from_metadata(metadata, tokenizer)
        ids += encode_text(entry, tokenizer, None if isinstance(entry, str) else template, where)
    return ids
