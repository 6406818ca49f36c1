"""Hit rates, bytes and modelled latency of recorded routing under each eviction policy and predictor, without a model.

Times come from a simple machine (--bandwidth, --latency-ms, --compute-ms, --expert-ms): a layer computes to its gate,
reads what it misses behind the experts that are there, and waits for the rest; forecasts are read in between.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from models.errors import UsageError
from pearl_cli.flag_files import NamedFile, file_of
from pearl_cli.sizes import Size, SizeParam
from pearl_cli.trace import RouteTrace, read_trace

_LONGEST_MS = 3.6e6  # an hour


class Milliseconds(click.FloatRange):
    """A time from 0 on; neither infinite nor no number, which would make all figures such."""

    def __init__(self) -> None:
        super().__init__(0, _LONGEST_MS)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = float(super().convert(value, param, ctx))
        if number != number:
            self.fail(f"'{value}' is no time; write milliseconds, such as 0.1", param, ctx)
        return number


POLICIES = ("on-demand", "lru", "lfu", "lfru", "least-stale", "random", "static", "pearl", "belady", "belady-bypass")
_PLOT_PERCENTS = (5, 10, 15, 20, 25, 30, 40, 50, 60, 75, 100)


@click.command(name="simulate", help=__doc__)
@click.argument("trace", type=NamedFile())
@click.option("--evict", type=click.Choice(POLICIES), help="One policy.  [default: all of them]")
@click.option("--budget", type=SizeParam(allow_percent=True), metavar="SIZE|PCT", default="25%", show_default=True,
              help="Memory for experts.")  # fmt: skip
@click.option("--scope", type=click.Choice(["layer", "global"]), default="layer", show_default=True,
              help="A share for each layer, or one pool.")  # fmt: skip
@click.option("--rules", type=click.Choice(["pool", "engine"]),
              help="pool: bytes, the prompt as one event a layer (the published curves). engine: whole slots a layer, "
              "token by token, as pearl runs.  [default: pool; engine where forecasts are used]")  # fmt: skip
@click.option("--split", type=click.Choice(["even", "uneven"]), default="even", show_default=True,
              help="Slots for every layer alike, or as make the fewest misses on the --usage trace.")  # fmt: skip
@click.option("--usage", type=NamedFile(), metavar="TRACE",
              help="What static and an uneven split go by.  [default: the replayed trace]")  # fmt: skip
@click.option("--predictor", default="none", show_default=True, metavar="NAME|FILE",
              help="none, ema, oracle:RECALL[:PRECISION]; with --hidden token-table or a trained file.")  # fmt: skip
@click.option("--hidden", type=NamedFile(), help="Router inputs recorded with the trace.")
@click.option("--stride", type=click.IntRange(1, 8), default=1, show_default=True, help="Layers ahead to forecast.")
@click.option("--bandwidth", type=SizeParam(above_zero=True), metavar="SIZE", default="1GiB", show_default=True,
              help="Bytes a second of the link.")  # fmt: skip
@click.option("--latency-ms", type=Milliseconds(), default=0.1, show_default=True, help="Of one read.")
@click.option("--compute-ms", type=Milliseconds(), default=0.5, show_default=True, help="Of a layer.")
@click.option("--expert-ms", type=Milliseconds(), default=0.0, show_default=True,
              help="Of one expert, within --compute-ms: reads hide behind experts that are there.")  # fmt: skip
@click.option("--ablate", is_flag=True, help="What controller and predictor are worth: PEARL's own table.")
@click.option("--plot", is_flag=True, help="Draw hit rate over budget for the policies.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a policy (an array for several).")
def command(
    trace: Path,
    evict: str | None,
    budget: Size,
    scope: str,
    rules: str | None,
    split: str,
    usage: Path | None,
    predictor: str,
    hidden: Path | None,
    stride: int,
    bandwidth: Size,
    latency_ms: float,
    compute_ms: float,
    expert_ms: float,
    ablate: bool,
    plot: bool,
    as_json: bool,
) -> None:
    from pearl_cli.predict.train_data import load_recorded
    from pearl_cli.residency.uneven_split import Split
    from pearl_cli.simulate.cost_model import Machine
    from pearl_cli.simulate.run import ENGINE_ONLY, Setting
    from pearl_cli.simulate.run import ablate as run_ablations
    from pearl_cli.terminal import Terminal

    _check_together(plot, as_json, ablate, evict)
    recorded = load_recorded(trace, hidden) if hidden is not None else None
    routes = recorded.trace if recorded is not None else read_trace(trace)
    ahead = predictor != "none" or ablate or evict in ENGINE_ONLY or split == "uneven"
    rules = rules or ("engine" if ahead else "pool")
    if rules == "engine" and scope == "global":
        raise UsageError("--rules engine has slots per layer; use --scope layer, or --rules pool for one global pool")
    machine = Machine(float(bandwidth.n_bytes), latency_ms / 1e3, compute_ms / 1e3, expert_ms / 1e3)
    used = _usage(usage, routes, trace)
    chosen_split = Split.of_trace(used or routes) if split == "uneven" else None
    setting = Setting(machine, scope, rules, predictor, stride, usage=used, split=chosen_split)
    budget_bytes = budget.of(routes.total_expert_bytes)
    if scope == "global" and not plot and budget_bytes < routes.token_cycle_bytes:
        Terminal().warn(_below_a_cycle(budget_bytes, routes.token_cycle_bytes))
    for line in _unused(used is not None, split, hidden is not None, predictor, evict, ablate):
        Terminal().note(line)
    names = [evict] if evict else [name for name in POLICIES if rules == "engine" or name not in ENGINE_ONLY]
    if plot:
        click.echo(_plot(routes, names, setting, recorded))
        return
    if ablate:
        records = run_ablations(routes, budget_bytes, setting, recorded)
    else:
        from pearl_cli.simulate.run import simulate

        records = [simulate(routes, name, budget_bytes, setting, recorded) for name in names]
    if as_json:
        click.echo(json.dumps(records[0] if evict and not ablate else records, indent=1))
        return
    shape = f"{routes.num_layers} layers, {routes.num_experts_per_tok} of {routes.num_experts} experts a token"
    click.echo(f"{routes.model or trace.name}: {shape}; budget {100 * budget_bytes / routes.total_expert_bytes:.0f} %")
    click.echo(_table(records))


def _check_together(plot: bool, as_json: bool, ablate: bool, evict: str | None) -> None:
    """Raises UsageError for flags that exclude each other."""
    for flag, other in (("--json", as_json), ("--ablate", ablate)):
        if plot and other:
            raise UsageError(f"--plot draws curves and {flag} prints something else: give one of them")
    if ablate and evict is not None:
        raise UsageError("--ablate runs policies of its own; leave --evict out")


def _unused(usage: bool, split: str, hidden: bool, predictor: str, evict: str | None, ablate: bool) -> list[str]:
    """Lines about given files (`usage`, `hidden`) that nothing in this replay goes by."""
    lines = []
    if usage and split != "uneven" and (ablate or evict not in (None, "static")):
        lines.append("--usage has no effect: it is what --evict static and --split uneven go by")
    if hidden and predictor == "none" and not ablate:
        lines.append("--hidden has no effect: no --predictor reads it")
    return lines


def _usage(usage: Path | None, routes: RouteTrace, replayed: Path) -> RouteTrace | None:
    """The trace of --usage. Raises FileError, and UsageError for one of another shape than `routes`."""
    if usage is None:
        return None
    with file_of("--usage"):
        used = read_trace(usage)
    if (used.num_layers, used.num_experts) != (routes.num_layers, routes.num_experts):
        raise UsageError(f"--usage {usage}: the trace is of another shape than {replayed}; give one of the same model")
    return used


def _below_a_cycle(budget_bytes: int, cycle_bytes: int) -> str:
    return (
        f"one pool of {budget_bytes / 2**20:.0f} MiB is smaller than the {cycle_bytes / 2**20:.0f} MiB that one token "
        "uses over all layers: by recency each expert leaves just before its layer comes again, so nothing is found; "
        "use --scope layer, or a larger --budget"
    )


def _table(records: list[dict[str, Any]]) -> str:
    """One line a record. MiB/token is what decoding demanded; a dash where there is nothing to say."""
    lines = [
        f"{'':<18} {'hit rate':>9} {'decode':>9} {'MiB/token':>10} {'fetched':>8} {'right':>6} {'stall ms':>9} "
        f"{'p50 ms':>8} {'p99 ms':>8} {'tok/s':>8}"
    ]
    for r in records:
        right = f"{100 * r['prefetch_precision']:.0f}%" if r["prefetch_precision"] is not None else "-"
        times = [f"{r[key]:.2f}" if r[key] is not None else "-" for key in ("token_ms_p50", "token_ms_p99")]
        speed = f"{r['tokens_per_s']:.1f}" if r["tokens_per_s"] else "-"
        lines.append(
            f"{r.get('ablation', r['evict']):<18} {100 * r['hit_rate']:8.2f}% {100 * r['hit_rate_decode']:8.2f}% "
            f"{r['demand_bytes_per_token'] / 2**20:10.2f} {r['prefetch_bytes_per_token'] / 2**20:8.2f} {right:>6} "
            f"{r['stall_ms_per_token']:9.2f} {times[0]:>8} {times[1]:>8} {speed:>8}"
        )
        if r["prefetching_switched_off"]:
            lines.append(f"{'':<18} {r['prefetching_switched_off']}")
    return "\n".join(lines)


def _plot(routes: RouteTrace, names: list[str], setting: Any, recorded: Any) -> str:
    from pearl_cli.simulate.plot import plot_curves
    from pearl_cli.simulate.run import simulate

    budgets = [routes.total_expert_bytes * percent // 100 for percent in _PLOT_PERCENTS]
    curves = {
        name: [simulate(routes, name, budget, setting, recorded)["hit_rate_decode"] for budget in budgets]
        for name in names
    }
    return plot_curves(curves, _PLOT_PERCENTS)
