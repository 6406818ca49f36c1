"""Perplexity of a text, and what a way of routing costs in it.

Windows of -c tokens follow each other; the second half of each is scored, given all before it, as llama-perplexity
does. Under --routing psr or cache-prior, and with --residency, every scored token is decoded on its own with the true
token fed back; a logical cache of --residency is simulated whatever is in memory, so quality needs no streaming.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import click

from models.errors import UsageError
from pearl_cli.flag_files import NamedFile
from pearl_cli.foreign_flags import answers_foreign_flags
from pearl_cli.options import RunOptions, run_options


@answers_foreign_flags
@click.command(name="eval", help=__doc__)
@run_options
@click.option("-f", "--file", type=NamedFile(), required=True,
              help="The text, or .jsonl with a text or a list of chat messages a line; - is stdin.")  # fmt: skip
@click.option("--score", type=click.Choice(["half", "all"]), default="half", show_default=True,
              help="Score the second half of each window, or all of it.")  # fmt: skip
@click.option("--chunks", type=click.IntRange(min=1), metavar="N", help="Use at most N windows.")
@click.option("--logits", type=NamedFile(), metavar="OUT.npy", help="Save logits of scored positions.")
@click.option("--kld-base", type=NamedFile(), metavar="BASE.npy",
              help="Logits that KL divergence and agreement are against.")  # fmt: skip
@click.option("--compare", multiple=True, metavar="FLAGS",
              help='Another setting on the same tokens, e.g. "--routing psr --lambda .1", and its paired price; '
              "repeatable. --residency and --evict hold for it too unless it has its own.")  # fmt: skip
@click.option("--plot", type=NamedFile(), metavar="OUT.svg",
              help="Draw the price of each --compare against its misses and copies.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    options: RunOptions,
    file: Path,
    score: str,
    chunks: int | None,
    logits: Path | None,
    kld_base: Path | None,
    compare: tuple[str, ...],
    plot: Path | None,
    as_json: bool,
) -> None:
    from pearl_cli.evaluate.evaluation import EvalRequest, evaluate
    from pearl_cli.evaluate.find_lambda import find_lambda
    from pearl_cli.evaluate.open_for_eval import open_for_eval
    from pearl_cli.evaluate.pareto_plot import pareto_svg
    from pearl_cli.evaluate.report import result_table
    from pearl_cli.evaluate.text_ids import ids_of
    from pearl_cli.flag_files import check_place, file_of
    from pearl_cli.resolve_routing import resolve_routing
    from pearl_cli.result_file import result_file
    from pearl_cli.routing.parse_flags import parse_routing
    from pearl_cli.routing.settings import routing_settings
    from pearl_cli.terminal import Progress, Terminal
    from pearl_cli.trace_texts import read_texts

    terminal = Terminal()
    if plot is not None and not compare:
        raise UsageError("--plot draws prices; add at least one --compare")
    settings = [routing_settings(options, simulated=True)]
    settings += [parse_routing(flags, options, "--compare", simulated=True) for flags in compare]
    if plot is not None and any(each.exact and each.residency is None for each in settings):
        raise UsageError("--plot counts misses of every setting, exact routing too: give --residency")
    check_place("--plot", plot, [file, kld_base, options.model])
    check_place("--logits", logits, [file, kld_base, options.model, plot])
    with file_of("-f"):
        texts = list(read_texts([file]))
    request = EvalRequest(settings, score, chunks, logits=logits, kld_base=kld_base)
    with open_for_eval(options, request, terminal) as session:
        ids = ids_of(texts, session.tokenizer, session.opened.gguf.metadata)
        if settings[0].lambda_ is None:
            request = find_lambda(session, ids, request, file.name)
        resolved = [resolve_routing(session.opened, each) for each in request.settings]
        request = dataclasses.replace(request, settings=resolved)
        progress = Progress(terminal, "evaluating")
        results, windows = evaluate(session, ids, request, progress)
        terminal.end_progress()
        model, context = str(session.opened.gguf.paths[0]), session.engine.context
    if as_json:
        first, *others = (result.record() for result in results)
        head = {"model_filename": model, "file": str(file), "n_ctx": context, "n_windows": len(windows),
                "n_tokens": int(results[0].scores.nll.size), "score": score}  # fmt: skip
        click.echo(json.dumps({**head, **first, "compared": others}))
    else:
        click.echo(result_table(results, len(windows), context, score))
    if plot is not None:  # after the figures, which a full disk must not lose
        with result_file(plot, "--plot") as place:
            place.write_text(pareto_svg(results), encoding="utf-8")
        terminal.note(f"plot: {plot}")
