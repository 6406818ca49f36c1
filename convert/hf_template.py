"""The chat template of a Hugging Face folder as GGUF keys. Templates are copied, never interpreted."""

from __future__ import annotations

from pathlib import Path

from convert.checkpoint_folder import read_json
from convert.gguf_metadata import Metadata
from models.errors import CheckpointError


def add_chat_template(metadata: Metadata, folder: Path) -> bool:
    """Write `tokenizer.chat_template` (and named ones); False where the folder has none.

    `chat_template.jinja` wins over `chat_template.json`, and that over `tokenizer_config.json`. Raises CheckpointError.
    """
    jinja = folder / "chat_template.jinja"
    if jinja.exists():
        try:
            metadata.string("tokenizer.chat_template", jinja.read_text("utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise CheckpointError(f"{jinja}: cannot be read as UTF-8: {error}") from None
        return True
    for name in ("chat_template.json", "tokenizer_config.json"):
        template = (read_json(folder, name) or {}).get("chat_template")
        if isinstance(template, str):
            metadata.string("tokenizer.chat_template", template)
            return True
        if isinstance(template, list) and template:
            _add_named(metadata, folder / name, template)
            return True
    return False


def _add_named(metadata: Metadata, path: Path, templates: list[object]) -> None:
    """A list of {name, template}: `default` becomes the template, the others keep their names."""
    names = []
    for entry in templates:
        if (
            not isinstance(entry, dict)
            or not isinstance(entry.get("name"), str)
            or not isinstance(entry.get("template"), str)
        ):
            raise CheckpointError(f"{path}: chat_template is a list of something else than name and template")
        if entry["name"] == "default":
            metadata.string("tokenizer.chat_template", entry["template"])
        else:
            names.append(entry["name"])
            metadata.string(f"tokenizer.chat_template.{entry['name']}", entry["template"])
    if names:
        metadata.strings("tokenizer.chat_templates", names)
