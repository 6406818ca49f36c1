"""Record which experts a model chooses while it reads, or continues, texts.

Without -n the texts are read as they are and every token is recorded as a decoded one (phase 1): what decoding this
text would demand. With -n each text is a prompt (phase 0) and N tokens follow it. A text longer than the context is cut
into pieces of that length. --hidden keeps the routers' inputs, which `pearl train` learns from.
"""

from __future__ import annotations

from pathlib import Path

import click

from pearl_cli.flag_files import NamedFile
from pearl_cli.foreign_flags import answers_foreign_flags
from pearl_cli.options import RunOptions, run_options


@answers_foreign_flags
@click.command(name="trace", help=__doc__)
@run_options
@click.option("-f", "--file", "files", type=NamedFile(), multiple=True, required=True,
              help="A text, or .jsonl with a text or a list of chat messages a line; repeatable.")  # fmt: skip
@click.option("-o", "--out", type=NamedFile(), required=True, help="The trace to write.")
@click.option("--hidden", type=NamedFile(), help="Also write router inputs, float16, as .npz.")
@click.option("-n", "--predict", "--n-predict", type=click.IntRange(min=0), default=0, metavar="N",
              help="Tokens to generate after each text.")  # fmt: skip
@click.option("--chat", is_flag=True, help="Render texts by the model's chat template.")
@click.option("--max-tokens", type=click.IntRange(min=1), help="Stop after so many tokens.")
def command(
    options: RunOptions,
    files: tuple[Path, ...],
    out: Path,
    hidden: Path | None,
    predict: int,
    chat: bool,
    max_tokens: int | None,
) -> None:
    from models.chat_template import ChatTemplate
    from pearl_cli.flag_files import check_place, file_of
    from pearl_cli.session import open_session
    from pearl_cli.terminal import Terminal
    from pearl_cli.trace_run import TraceRun, check_lengths
    from pearl_cli.trace_texts import encode_text, read_texts

    terminal = Terminal()
    check_place("-o", out, [*files, options.model])
    check_place("--hidden", hidden, [*files, options.model, out])
    with file_of("-f"):
        texts = list(read_texts(files))
    with open_session(options, terminal) as session:
        template = ChatTemplate.from_metadata(session.opened.gguf.metadata, session.tokenizer) if chat else None
        prompts = [encode_text(entry, session.tokenizer, template, where) for where, entry in texts]
        check_lengths(zip((where for where, _ in texts), prompts, strict=True), session.engine, predict)
        run = TraceRun(session, terminal, keep_hidden=hidden is not None, max_tokens=max_tokens)
        n_tokens = run.write(out, prompts, predict)
        if hidden is not None:
            run.save_hidden(hidden)
    terminal.note(f"{out}: {n_tokens} tokens of {len(prompts)} texts")
