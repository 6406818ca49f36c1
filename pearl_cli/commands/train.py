"""Train a forecast of expert demand from a trace and the router inputs recorded with it.

horizon-mlp and trajectory forecast a layer's next events and serve eviction (--evict pearl) and prefetching; mlp
forecasts the layer --stride layers further on and serves prefetching. Every tenth text is held out to judge the result.
Needs torch: pip install 'pearl-moe[train]'.
"""

from __future__ import annotations

from pathlib import Path

import click

from models.errors import UsageError
from pearl_cli.flag_files import NamedFile


@click.command(name="train", help=__doc__)
@click.argument("trace", type=NamedFile())
@click.option("--hidden", type=NamedFile(), required=True, help="Router inputs: pearl trace --hidden.")
@click.option("--predictor", type=click.Choice(["horizon-mlp", "trajectory", "mlp"]), default="horizon-mlp",
              show_default=True, help="What to train.")  # fmt: skip
@click.option("-o", "--out", type=NamedFile(), required=True, help="The predictor file to write.")
@click.option("--width", type=click.IntRange(min=8),
              help="Hidden units.  [default: 128; trajectory 64; mlp half the model's width]")  # fmt: skip
@click.option("--horizon", type=click.IntRange(1, 16), help="Events ahead, for all but mlp.  [default: 4]")
@click.option("--stride", type=click.IntRange(1, 8), help="Layers ahead, for mlp.  [default: 2]")
@click.option("--epochs", type=click.IntRange(min=1), default=8, show_default=True, help="Passes over the trace.")
@click.option("-t", "--threads", type=click.IntRange(min=1), default=1, show_default=True, help="Threads of torch.")
@click.option("-s", "--seed", type=click.IntRange(0, 2**32 - 1), default=0, show_default=True, help="Random seed.")
def command(
    trace: Path,
    hidden: Path,
    predictor: str,
    out: Path,
    width: int | None,
    horizon: int | None,
    stride: int | None,
    epochs: int,
    threads: int,
    seed: int,
) -> None:
    from pearl_cli.cpu_cores import within_cores
    from pearl_cli.flag_files import check_place
    from pearl_cli.predict.judge import judged
    from pearl_cli.predict.predictor_file import PredictorCard, as_stored, save_predictor
    from pearl_cli.predict.train_data import load_recorded, split_by_turn
    from pearl_cli.terminal import Progress, Terminal

    try:
        from pearl_cli.predict.train import TrainOptions, train
        from pearl_cli.predict.train_threads import set_threads
    except ImportError as error:
        raise UsageError("pearl train needs torch: pip install 'pearl-moe[train]'") from error
    is_stride = predictor == "mlp"
    for flag, value, applies in (("--horizon", horizon, not is_stride), ("--stride", stride, is_stride)):
        if value is not None and not applies:
            raise UsageError(f"{flag} says nothing about --predictor {predictor}; leave it out")
    check_place("-o", out, [trace, hidden])
    terminal = Terminal()
    set_threads(within_cores(threads, "train", terminal.note))
    recorded = load_recorded(trace, hidden)
    learned_from, held_out = split_by_turn(recorded)
    horizon, stride = horizon or 4, stride or 2
    width = width or default_width(predictor, recorded.hidden.shape[2])
    options = TrainOptions(predictor, width, 1 if is_stride else horizon, stride, epochs, seed)
    tensors = train(learned_from, options, Progress(terminal, f"training {predictor}"))
    card = PredictorCard(
        kind=predictor,
        fingerprint=recorded.fingerprint,
        model=recorded.trace.model,
        layers=tuple(recorded.layers),
        num_experts=recorded.trace.num_experts,
        num_experts_per_tok=recorded.trace.num_experts_per_tok,
        hidden_size=recorded.hidden.shape[2],
        width=options.width,
        horizon=options.horizon,
        stride=stride if is_stride else 0,
        training_tokens=len(learned_from.hidden),
        held_out_tokens=0,
        recall=(0.0,) * options.horizon,
        ece=0.0,
    )
    stored = as_stored(tensors)
    card = judged(held_out, card, stored)
    save_predictor(out, card, stored)
    for line in card.lines():
        click.echo(line)


def default_width(predictor: str, hidden_size: int) -> int:
    """Half the model's width gives ProMoE's about two million weights a layer where 2048 go in and 64 experts come out.
    """
    return {"trajectory": 64, "mlp": max(8, hidden_size // 2)}.get(predictor, 128)
