"""`pearl convert`: a Hugging Face folder or a GGUF into pearl shards, or back into one stock GGUF."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from pearl_cli.flag_files import NamedPath, file_of
from pearl_cli.sizes import Size, SizeParam

if TYPE_CHECKING:
    from convert.plan import ConvertOptions


@click.command("convert", short_help="Turn a Hugging Face folder or a GGUF into pearl shards.")
@click.argument("source", type=NamedPath())
@click.option(
    "-o",
    "--output",
    "out",
    type=NamedPath(),
    help="Directory to write into (with --merge also FILE.gguf).",
)
@click.option(
    "--quant",
    metavar="TYPE|MIX",
    help="Type of the matrices: f32, f16, bf16, q8_0, q4_0, q4_k, ..., or one of llama.cpp's mixes: q4_k_m, q5_k_s, "
    "q3_k_l, ..., among which q2_k and q6_k are too.  [default: the input's]",
)
@click.option("--recipe", metavar="ROLE=TYPE,...", help="Types by role, e.g. attn=q8_0,exps.down=q6_k,embed=q8_0.")
@click.option(
    "--imatrix",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Importance matrix (llama.cpp's GGUF or .dat) that says which columns' errors count most.",
)
@click.option(
    "--order",
    "order_trace",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="TRACE",
    help="Put experts that a recorded trace (pearl trace) uses together beside each other.",
)
@click.option("--dry-run", is_flag=True, help="Show what would be written, and write nothing.")
@click.option(
    "--shard-size",
    type=SizeParam(above_zero=True),
    metavar="SIZE",
    help="Largest size of a shard.  [default: 4GiB; one file with --merge]",
)
@click.option("--merge", is_flag=True, help="Write one stock GGUF with stacked experts, which llama.cpp loads.")
@click.option(
    "--unify",
    is_flag=True,
    help="With --merge: where a stack's experts have different types, store all in the one with the most bits.",
)
@click.option(
    "--consume",
    is_flag=True,
    help="Delete each weight file of a Hugging Face folder once all that came from it is safely written.",
)
@click.option("--allow-requantize", is_flag=True, help="Let weights that are already quantised change their type.")
@click.option(
    "--allow-unmapped", is_flag=True, help="Leave tensors behind that have no place in a GGUF of this architecture."
)
@click.option("--no-vocab", is_flag=True, help="Convert a folder that holds no tokenizer.")
@click.option("--pre", metavar="NAME", help="Pre-tokenizer to record, where the tokenizer's own is not recognised.")
@click.option("-t", "--threads", type=click.IntRange(min=1), help="Threads to quantise with.  [default: all cores]")
def command(
    source: Path,
    out: Path | None,
    dry_run: bool,
    shard_size: Size | None,
    no_vocab: bool,
    order_trace: Path | None,
    threads: int | None,
    **flags: object,
) -> None:
    """Convert SOURCE into a model that pearl opens.

    SOURCE is a Hugging Face folder with safetensors, a GGUF, or any shard of a split set. The last line of stdout is
    the path to open.
    """
    from convert.plan import ConvertOptions
    from pearl_cli.cpu_cores import within_cores

    if out is None and not dry_run:
        raise click.UsageError("give the directory to write into with -o (or --dry-run)")
    if flags["unify"] and not flags["merge"]:
        raise click.UsageError("--unify goes with --merge: only in a stack do experts share a type; leave it out")
    flags["threads"] = within_cores(threads, "quantise", lambda line: click.echo(line, err=True)) if threads else 0
    options = ConvertOptions(
        shard_bytes=shard_size.n_bytes if shard_size else None,
        with_vocab=not no_vocab,
        expert_order=None if order_trace is None else _order(order_trace),
        **flags,  # type: ignore[arg-type]
    )
    if dry_run:
        _show_plan(source, out or Path("."), options)
    else:
        assert out is not None
        _run(source, out, options)


def _order(path: Path) -> tuple[tuple[int, ...], ...]:
    """Each layer's experts in the order that the trace at `path` suggests; says what that is worth in it."""
    from convert.expert_order import mean_stretches, order_by_coactivation
    from pearl_cli.trace import read_trace

    with file_of("--order"):
        trace = read_trace(path)
    choices = [(event.layer, event.expert_ids) for event in trace.events(token_by_token=True)]
    order = order_by_coactivation(choices, trace.num_layers, trace.num_experts)
    before, after = mean_stretches(choices, None), mean_stretches(choices, order)
    click.echo(
        f"--order: in {path.name} a token's experts lie in {after:.2f} stretches a layer, by number in {before:.2f}",
        err=True,
    )
    return order


def _run(source: Path, out: Path, options: ConvertOptions) -> None:
    from convert.pipeline import convert
    from pearl_cli.terminal import Progress, Terminal

    terminal = Terminal()
    bar = Progress(terminal, f"converting {source.name or source}")
    try:
        path = convert(source, out, options, lambda done, total, _: bar(done, total), terminal.note)
    except KeyboardInterrupt:
        terminal.note("stopped; the same command goes on from here")
        raise
    click.echo(path)


def _show_plan(source: Path, out: Path, options: ConvertOptions) -> None:
    """Print the table of roles, the files, and their sizes."""
    from convert.pipeline import opened
    from convert.plan import plan_conversion
    from convert.shard_writer import size_text
    from convert.summary import summarize

    with opened(source, options) as opened_source:
        plan = plan_conversion(opened_source, out, options)
        rows = summarize(plan, opened_source)
    for line in [*opened_source.notes, *plan.notes]:
        click.echo(line, err=True)
    click.echo(f"{'role':<12} {'tensors':>8} {'type':<7} {'size':>11} {'bits/weight':>12} {'read a token':>13}")
    for row in rows:
        click.echo(
            f"{row.role:<12} {row.n_tensors:>8} {row.quant_type.name:<7} {size_text(row.n_bytes):>11} "
            f"{row.bits_per_weight:>12.2f} {size_text(row.token_bytes):>13}"
        )
    total, read = sum(row.n_bytes for row in rows), sum(row.token_bytes for row in rows)
    bits = 8 * total / max(1, sum(row.n_weights for row in rows))
    n_tensors = sum(row.n_tensors for row in rows)
    click.echo(f"{'all':<12} {n_tensors:>8} {'':<7} {size_text(total):>11} {bits:>12.2f} {size_text(read):>13}")
    click.echo(f"{len(plan.layouts)} files, {size_text(sum(layout.file_bytes for layout in plan.layouts))}")
    click.echo(plan.layouts[0].path)
