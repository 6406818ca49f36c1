"""`pearl synth`: a model of a known shape with random weights."""

from __future__ import annotations

from pathlib import Path

import click

from pearl_cli.flag_files import NamedPath
from pearl_cli.sizes import Size, SizeParam


@click.command("synth", short_help="Write a model of a known shape with random weights, for speed work.")
@click.argument("shape")
@click.option(
    "-o",
    "--output",
    "out_dir",
    type=NamedPath(file_okay=False),
    required=True,
    help="Directory to write into.",
)
@click.option(
    "--quant",
    metavar="TYPE|MIX",
    default="q4_k",
    show_default=True,
    help="Storage type of the matrices: f32, f16, bf16, q8_0, q4_0, q5_0, q5_1, q4_k, q5_k, mxfp4, or one of "
    "llama.cpp's mixes: q4_k_s, q4_k_m, q5_k_s, q5_k_m, q6_k, mxfp4_moe.",
)
@click.option(
    "--layout",
    type=click.Choice(["pearl", "stacked"]),
    default="pearl",
    show_default=True,
    help="pearl shards, or one stock GGUF that llama.cpp loads too; the weights are the same.",
)
@click.option("--layers", type=click.IntRange(min=1), help="Fewer or more layers than the real model has.")
@click.option("-s", "--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option(
    "--shard-size",
    type=SizeParam(above_zero=True),
    default="4GiB",
    show_default=True,
    help="Largest size of an expert shard.",
)
def command(
    shape: str, out_dir: Path, quant: str, layout: str, layers: int | None, seed: int, shard_size: Size
) -> None:
    """Write a model of SHAPE with random weights.

    SHAPE is one of olmoe-1b-7b, qwen3-30b-a3b, mixtral-8x7b, qwen1.5-moe-a2.7b, qwen2-57b-a14b, deepseek-v2-lite,
    deepseek-v3, moonlight-16b-a3b, dots-llm1, ernie-4.5-21b-a3b, hunyuan-a13b, mellum2-12b-a2.5b, k-exaone-236b-a23b,
    hy3-295b-a21b, trinity-mini-26b-a3b, minimax-m2, glm-4.7-flash, glm-4.5-air, gemma-4-26b-a4b, phi-3.5-moe,
    gpt-oss-20b, gpt-oss-120b, lfm2-8b-a1b, qwen3-next-80b-a3b, qwen3-vl-30b-a3b, qwen3.6-35b-a3b,
    granite-3.1-3b-a800m, granite-4.0-h-tiny and granite-4.0-h-small. The last line of stdout is the path to open.
    """
    from convert.synth import synthesize
    from pearl_cli.terminal import Progress, Terminal

    terminal = Terminal()
    bar = Progress(terminal, f"writing {shape}")
    try:
        path = synthesize(
            shape,
            out_dir,
            quant,
            lambda done, total, _: bar(done, total),
            layout=layout,
            num_layers=layers,
            seed=seed,
            shard_bytes=shard_size.n_bytes,
        )
    except KeyboardInterrupt:
        terminal.note("stopped; the same command goes on from here")
        raise
    click.echo(path)
