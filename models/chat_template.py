"""Messages to a prompt, by the chat template in a GGUF. The sandbox it runs in is `models.chat_template_sandbox`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import jinja2

from models.chat_template_sandbox import TemplateEnvironment, bounded
from models.errors import TemplateError
from models.tokenizer import Tokenizer

Messages = Sequence[Mapping[str, Any]]
_KEY = "tokenizer.chat_template"
# What a probe for system support renders; unlikely in any template.
_PROBE_SYSTEM, _PROBE_USER = "pearl-system-probe", "pearl-user-probe"


class ChatTemplate:
    """One compiled template with the special tokens it may name."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        """`special_tokens`: bos_token, eos_token, ... as the template sees them. TemplateError for bad syntax."""
        self.source = source
        self._variables = dict(special_tokens)
        try:
            source.encode()
            self._template = TemplateEnvironment().from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise TemplateError(f"the chat template has a fault in line {error.lineno}: {_line(error)}") from error
        except (UnicodeEncodeError, RecursionError) as error:
            raise TemplateError(f"the chat template cannot be read: {_line(error)}") from error

    @classmethod
    def from_metadata(
        cls, metadata: Mapping[str, Any], tokenizer: Tokenizer, override: str | None = None
    ) -> ChatTemplate:
        """The template of a GGUF, or `override` (a template's text). TemplateError when there is neither."""
        source = override if override is not None else _find_source(metadata)
        return cls(source, special_tokens(tokenizer))

    def render(self, messages: Messages, add_generation_prompt: bool = True, **kwargs: Any) -> str:
        """The prompt's text. `kwargs` are further variables for the template; `messages` are not changed.

        TemplateError when the template raises, is refused by the sandbox, or goes over its bounds.
        """
        variables = {"tools": None, "documents": None, **self._variables, **kwargs}
        copies = [dict(message) for message in messages]
        n_chars = sum(len(str(value)) for message in copies for value in message.values())
        try:
            return bounded(
                lambda: self._template.render(
                    messages=copies, add_generation_prompt=add_generation_prompt, **variables
                ),
                n_chars,
            )
        except jinja2.exceptions.SecurityError as error:
            raise TemplateError(f"the chat template was refused: {_line(error)}") from error
        except Exception as error:  # whatever a stranger's program can raise
            kind = "" if isinstance(error, jinja2.TemplateError) else f"{type(error).__name__}: "
            raise TemplateError(f"the chat template failed: {kind}{_line(error)}") from error

    def encode(
        self, tokenizer: Tokenizer, messages: Messages, add_generation_prompt: bool = True, **kwargs: Any
    ) -> list[int]:
        """Ids of the prompt: exactly the template's, and a BOS in front only if the model wants one and it has none."""
        text = self.render(messages, add_generation_prompt, **kwargs)
        ids = tokenizer.encode(text, add_bos=False, special=True)
        if tokenizer.add_bos and ids[:1] != [tokenizer.bos_id]:
            return tokenizer.encode("", add_bos=True) + ids
        return ids

    @cached_property
    def supports_system(self) -> bool:
        """False when the template raises on a system turn or leaves its text out, and does not without one."""
        user = {"role": "user", "content": _PROBE_USER}
        try:
            return _PROBE_SYSTEM in self.render([{"role": "system", "content": _PROBE_SYSTEM}, user])
        except TemplateError:
            pass
        try:
            self.render([user])
        except TemplateError:
            return True  # it is not the system turn that it minds
        return False

    def prepare(self, messages: Messages) -> tuple[list[dict[str, Any]], str | None]:
        """`messages` as this template takes them, and a warning for the user when that changed them, else None."""
        turns = [dict(message) for message in messages]
        if not turns or turns[0].get("role") != "system" or self.supports_system:
            return turns, None
        return fold_system(turns), "this model's chat template takes no system text; it is put before the first message"


def special_tokens(tokenizer: Tokenizer) -> dict[str, str]:
    """The variables bos_token, eos_token, pad_token and unk_token, those that the vocabulary has."""
    ids = {"bos": tokenizer.bos_id, "eos": tokenizer.eos_id, "pad": tokenizer.pad_id, "unk": tokenizer.unk_id}
    return {f"{name}_token": tokenizer.token_text(i) for name, i in ids.items() if i is not None}


def fold_system(messages: Messages) -> list[dict[str, Any]]:
    """A leading system turn put in front of the first user turn, a blank line between; without a user turn, as one."""
    turns = [dict(message) for message in messages]
    if not turns or turns[0].get("role") != "system":
        return turns
    system, rest = turns[0], turns[1:]
    for turn in rest:
        if turn.get("role") == "user":
            turn["content"] = f"{system['content']}\n\n{turn['content']}"
            return rest
    return [{**system, "role": "user"}, *rest]


def _find_source(metadata: Mapping[str, Any]) -> str:
    """The template, or the one named "default" where a file holds several."""
    value = metadata.get(_KEY)
    named = {key.removeprefix(f"{_KEY}."): text for key, text in metadata.items() if key.startswith(f"{_KEY}.")}
    if isinstance(value, Sequence) and not isinstance(value, str):
        named |= {entry["name"]: entry["template"] for entry in value if isinstance(entry, Mapping)}
        value = None
    source = named.get("default") if value is None else value
    if isinstance(source, str):
        return source
    has = f"only the templates {', '.join(sorted(named))} and none named default" if named else "no chat template"
    raise TemplateError(f"the model has {has}; give one with --template FILE")


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())
