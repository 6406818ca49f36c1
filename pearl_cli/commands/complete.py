"""Continue a text as it is, without a chat template.

The continuation goes to stdout as it comes; with --json one object with ids, text, finish reason and timings.
"""

from __future__ import annotations

import json
from pathlib import Path

import click

from models.errors import UsageError
from pearl_cli.escapes import escape_option, text_or_file, typed_text
from pearl_cli.flag_files import NamedFile
from pearl_cli.foreign_flags import answers_foreign_flags
from pearl_cli.options import RunOptions, StopText, run_options
from pearl_cli.sampling_options import SamplingFlags, sampling_options


@answers_foreign_flags
@click.command(name="complete", help=__doc__)
@run_options
@click.option("-p", "--prompt", help="The text to continue.")
@click.option("-f", "--file", type=NamedFile(), help="The text from a file; - is stdin.")
@click.option("-n", "--predict", "--n-predict", type=click.IntRange(min=-1), default=-1, show_default=True, metavar="N",
              help="Tokens to generate at most; -1 goes on to the end of the text or of the context.")  # fmt: skip
@click.option("--special", is_flag=True, help="Read special tokens in the prompt as such.")
@click.option("--ignore-eos", is_flag=True, help="Never end before -n tokens.")
@click.option("-r", "--reverse-prompt", type=StopText(), multiple=True, metavar="TEXT",
              help="Stop at this text; repeatable.")  # fmt: skip
@escape_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of streaming text.")
@click.option("--timeline", type=NamedFile(), help="Write a Chrome trace of the run to this file.")
@sampling_options
def command(
    options: RunOptions,
    sampling: SamplingFlags,
    prompt: str | None,
    file: Path | None,
    predict: int,
    special: bool,
    ignore_eos: bool,
    reverse_prompt: tuple[str, ...],
    escape: bool | None,
    as_json: bool,
    timeline: Path | None,
) -> int:
    from contextlib import nullcontext

    from pearl_cli.completion import complete
    from pearl_cli.flag_files import check_place
    from pearl_cli.result_file import result_file
    from pearl_cli.routing.mark import steered_mark
    from pearl_cli.session import open_session
    from pearl_cli.terminal import Terminal
    from pearl_cli.timeline import Timeline, recording

    if (prompt is None) == (file is None):
        raise UsageError("give the text to continue: either -p TEXT or -f FILE")
    check_place("--timeline", timeline, [file, options.model])
    text = text_or_file("-p", prompt, "-f", file, escape) or ""
    stops = [typed_text("-r", stop, escape) for stop in reverse_prompt]
    terminal = Terminal()
    with open_session(options, terminal) as session:
        show = None if as_json else terminal.reply
        params = sampling.for_model(session.opened.gguf.metadata)
        trace = Timeline()
        with recording(trace, session.opened) if timeline is not None else nullcontext():
            done = complete(session, text, params, predict, special, ignore_eos, stops, show)
        if as_json:
            record = done.record() | {"routing": session.opened.routing.label()}
            click.echo(json.dumps(record, ensure_ascii=False))
        else:
            terminal.newline()
        for line in done.notes:
            terminal.note(line)
        if not as_json:
            if params.temperature > 0:
                terminal.note(f"seed {done.seed}")
            mark = steered_mark(session.opened.routing)
            if mark is not None:
                terminal.note(mark)
        if timeline is not None:
            with result_file(timeline, "--timeline") as place:
                n_events = trace.write(place)
            terminal.note(f"{timeline}: {n_events} events, {trace.dropped} left out")
        return 130 if done.finish_reason == "cancelled" else 0
