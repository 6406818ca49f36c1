"""`pearl tokenize`: the token ids of a text, from any GGUF that holds a vocabulary, with or without weights."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from models.errors import GGUFError, UnsupportedTokenizer, UsageError
from models.tokenizer import Tokenizer
from pearl_cli.flag_files import NamedFile, NamedPath
from pearl_cli.open_model import open_model
from pearl_cli.options import RunOptions


@click.command("tokenize", context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "-m",
    "--model",
    required=True,
    type=NamedPath(),
    help="GGUF with the vocabulary, or a Hugging Face folder.",
)
@click.option("-p", "--prompt", help="The text. Without -p, -f and --jsonl it is read from standard input.")
@click.option("-f", "--file", type=NamedFile(), help="A file with the text, taken as it is.")
@click.option("--jsonl", is_flag=True, help="Read one JSON string a line from standard input; print one array a line.")
@click.option("--no-bos", is_flag=True, help="Never put the begin-of-text token in front.")
@click.option("--special", is_flag=True, help="Read control tokens such as <s> in the text as tokens, not as text.")
@click.option("--json", "as_json", is_flag=True, help="Print the ids as one JSON array.")
@click.option("--pre", metavar="NAME", help="Use this pre-tokenizer instead of the one the file names.")
def command(
    model: Path,
    prompt: str | None,
    file: Path | None,
    jsonl: bool,
    no_bos: bool,
    special: bool,
    as_json: bool,
    pre: str | None,
) -> None:
    """Show the token ids of a text: on one line, separated by spaces."""
    if (prompt is not None) + (file is not None) + jsonl > 1:
        raise UsageError("give the text once: with -p, with -f, or on standard input (--jsonl)")
    with open_model(model, RunOptions(), lambda line: click.echo(line, err=True)) as gguf:
        try:
            tokenizer = Tokenizer.from_metadata(gguf.metadata, pre)
        except (UnsupportedTokenizer, GGUFError) as error:
            raise type(error)(f"{model}: {error}") from error
    for note in tokenizer.notes:
        click.echo(f"warning: {note}", err=True)
    add_bos = False if no_bos else None
    if jsonl:
        _tokenize_lines(tokenizer, add_bos, special)
        return
    ids = tokenizer.encode(_read_text(prompt, file), add_bos, special)
    click.echo(json.dumps(ids) if as_json else " ".join(map(str, ids)))


def _read_text(prompt: str | None, file: Path | None) -> str:
    if prompt is not None:
        return prompt
    source = f"-f {file}" if file else "standard input"
    try:
        raw = file.read_bytes() if file else sys.stdin.buffer.read()
    except OSError as error:
        raise UsageError(f"{source}: {error.strerror}") from error
    return _decode(raw, source)


def _tokenize_lines(tokenizer: Tokenizer, add_bos: bool | None, special: bool) -> None:
    for number, line in enumerate(sys.stdin.buffer, 1):
        where = f"standard input, line {number}"
        try:
            text = json.loads(_decode(line, where))
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{where}: not JSON ({error}); --jsonl takes one JSON string a line") from error
        if not isinstance(text, str):
            raise UsageError(f"{where}: not a JSON string; --jsonl takes one JSON string a line")
        try:
            ids = tokenizer.encode(text, add_bos, special)
        except UsageError as error:
            raise UsageError(f"{where}: {error}") from error
        click.echo(json.dumps(ids))


def _decode(raw: bytes, source: str) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{source}: not valid UTF-8 at byte {error.start}; give the text as UTF-8") from None
