"""Measure prompt and generation speed, hit rate, bytes moved and waiting, at batch 1.

Tokens are random from a printed seed, or a real text with --prompt-file. Under cache-aware routing decoding is timed
twice: teacher-forced with those tokens, and free-running on the model's own. Compiling and the first token are outside
the figures. Under a ceiling there is a record for a cold start (slots empty) and one for the warm runs.
"""

from __future__ import annotations

from pathlib import Path

import click

from pearl_cli.bench.report import FORMATS
from pearl_cli.flag_files import NamedFile
from pearl_cli.foreign_flags import answers_foreign_flags
from pearl_cli.options import RunOptions, run_options


class IntList(click.ParamType[list[int]]):
    """`512` or `128,512`: whole numbers from 0."""

    name = "N[,N...]"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> list[int]:
        if isinstance(value, list):
            return value
        parts = str(value).split(",")
        if not all(part.strip().isdecimal() for part in parts):
            self.fail(f"'{value}' is not a list of whole numbers; write 512, or 128,512 for several", param, ctx)
        return [int(part) for part in parts]


@answers_foreign_flags
@click.command(name="bench", help=__doc__)
@run_options
@click.option("-p", "--n-prompt", type=IntList(), default="512", show_default=True, help="Prompt lengths; 0 for none.")
@click.option("-n", "--n-gen", type=IntList(), default="128", show_default=True, help="Tokens to decode; 0 for none.")
@click.option("-d", "--n-depth", type=IntList(), default="0", show_default=True, help="Context tokens before the test.")
@click.option(
    "-r", "--repetitions", type=click.IntRange(min=1), default=5, show_default=True, help="Runs of each test."
)
@click.option("-o", "--output", type=click.Choice(FORMATS), default="md", show_default=True, help="Format on stdout.")
@click.option("--prompt-file", type=NamedFile(), help="A real text; what follows is the model's own.")
@click.option("--force-text", is_flag=True, help="Feed the text of --prompt-file while decoding, too.")
@click.option(
    "--ablate",
    metavar="LIST",
    help="Switch pieces off, runs in turn: evict, predictor, routing, auto (what it finds out), reorder, preempt, "
    "chunk, merge; or evict=lfu; evict=all+predictor=all is the table of both.",
)
@click.option("--route-trace", type=NamedFile(), help="Force recorded routing of such a model.")
@click.option("--price", type=NamedFile(), metavar="TEXT",
              help="Also print what --routing costs in perplexity of this text, with a paired interval.")  # fmt: skip
@click.option("--timeline", type=NamedFile(), help="Then write a Chrome trace of some decode steps.")
@click.option("--vs", metavar="llama-bench=PATH", help="Run llama.cpp's bench in turn with pearl and print the ratio.")
@click.option("--vs-model", type=NamedFile(), help="The stock GGUF for --vs when -m is a pearl set.")
def command(
    options: RunOptions,
    n_prompt: list[int],
    n_gen: list[int],
    n_depth: list[int],
    repetitions: int,
    output: str,
    prompt_file: Path | None,
    force_text: bool,
    ablate: str | None,
    price: Path | None,
    timeline: Path | None,
    vs: str | None,
    vs_model: Path | None,
) -> None:
    from pearl_cli.bench.report import format_records
    from pearl_cli.bench.request import BenchRequest
    from pearl_cli.bench.run import run_bench
    from pearl_cli.terminal import Terminal

    request = BenchRequest(
        n_prompt, n_gen, n_depth, repetitions, prompt_file, force_text, ablate, price, timeline, vs, vs_model
    )
    run_bench(options, request, Terminal(), lambda records: click.echo(format_records(records, output)))
