"""`pearl simulate TRACE`: hit rates and bytes of recorded routing under each eviction policy, without a model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from models.errors import UsageError
from pearl_cli.options import Size, SizeParam
from pearl_cli.trace import RouteTrace, read_trace

POLICIES = ("lru", "lfu", "lfru", "least-stale", "random", "static", "belady", "belady-bypass")
_PLOT_PERCENTS = (5, 10, 15, 20, 25, 30, 40, 50, 60, 75, 100)


@click.command(name="simulate", help=__doc__)
@click.argument("trace", type=click.Path(path_type=Path))
@click.option("--evict", type=click.Choice(POLICIES), help="One policy.  [default: all of them]")
@click.option(
    "--budget",
    type=SizeParam(allow_percent=True),
    metavar="SIZE|PCT",
    default="25%",
    show_default=True,
    help="Memory for experts.",
)
@click.option(
    "--scope",
    type=click.Choice(["layer", "global"]),
    default="layer",
    show_default=True,
    help="A share for each layer, or one pool.",
)
@click.option(
    "--rules",
    type=click.Choice(["pool", "engine"]),
    default="pool",
    show_default=True,
    help="pool: bytes, the prompt as one event a layer (the published curves). "
    "engine: whole slots a layer, token by token, as pearl runs.",
)
@click.option("--plot", is_flag=True, help="Draw hit rate over budget for the policies.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a policy (an array for several).")
def command(trace: Path, evict: str | None, budget: Size, scope: str, rules: str, plot: bool, as_json: bool) -> None:
    recorded = read_trace(trace)
    if rules == "engine" and scope == "global":
        raise UsageError("--rules engine has slots per layer; use --scope layer, or --rules pool for one global pool")
    names = [evict] if evict else [name for name in POLICIES if rules == "engine" or name != "belady-bypass"]
    if plot:
        click.echo(_plot(recorded, names, scope, rules))
        return
    records = [simulate(recorded, name, budget.of(recorded.total_expert_bytes), scope, rules) for name in names]
    if as_json:
        click.echo(json.dumps(records[0] if evict else records, indent=1))
        return
    shape = f"{recorded.num_layers} layers, {recorded.num_experts_per_tok} of {recorded.num_experts} experts a token"
    click.echo(f"{recorded.model or trace.name}: {shape}")
    click.echo(f"{'evict':<14} {'hit rate':>9} {'decode':>9} {'GiB read':>9} {'MiB/token':>10}")
    for record in records:
        click.echo(
            f"{record['evict']:<14} {100 * record['hit_rate']:8.2f}% {100 * record['hit_rate_decode']:8.2f}% "
            f"{record['read_bytes'] / 2**30:9.2f} {record['read_bytes_per_decode_token'] / 2**20:10.1f}"
        )


def simulate(recorded: RouteTrace, name: str, budget_bytes: int, scope: str, rules: str) -> dict[str, Any]:
    """One replay as a flat record. `hit_rate` counts prompt and decoding, `hit_rate_decode` decoding alone."""
    from pearl_cli.residency.eviction import make_policy
    from pearl_cli.simulate.engine_rules import replay_bypass, replay_engine
    from pearl_cli.simulate.pool import replay_pool

    policy = None if name.startswith("belady") else make_policy(name, popularity=_popularity(recorded, scope, rules))
    if rules == "engine":
        slots = [int(budget_bytes / recorded.num_layers // n_bytes) for n_bytes in recorded.expert_bytes]
        result = replay_bypass(recorded, slots) if name == "belady-bypass" else replay_engine(recorded, slots, policy)
    elif name == "belady-bypass":
        raise UsageError("--evict belady-bypass needs --rules engine")
    else:
        result = replay_pool(recorded, budget_bytes, policy, per_layer=scope == "layer")
    decode_tokens = len({(turn, step) for turn, phase, step in recorded.rows[:, :3].tolist() if phase == 1})
    return {
        "evict": name,
        "scope": scope,
        "rules": rules,
        "budget_bytes": budget_bytes,
        "expert_bytes_total": recorded.total_expert_bytes,
        "hit_rate": result.hit_rate,
        "hit_rate_decode": result.hit_rate_decode,
        "lookups": result.lookups,
        "lookups_decode": result.lookups_decode,
        "read_bytes": result.read_bytes,
        "read_bytes_decode": result.read_bytes_decode,
        "read_bytes_per_decode_token": result.read_bytes_decode / max(decode_tokens, 1),
    }


def _popularity(recorded: RouteTrace, scope: str, rules: str) -> Any:
    """Use counts over the whole trace, for `static`: [L, E], or one row over all experts for a global pool."""
    import numpy as np

    counts = np.zeros((recorded.num_layers, recorded.num_experts), np.int64)
    np.add.at(counts, (recorded.rows[:, 3], recorded.rows[:, 5]), 1)
    return counts.reshape(1, -1) if scope == "global" and rules == "pool" else counts


def _plot(recorded: RouteTrace, names: list[str], scope: str, rules: str) -> str:
    from pearl_cli.simulate.plot import plot_curves

    curves = {
        name: [
            simulate(recorded, name, recorded.total_expert_bytes * percent // 100, scope, rules)["hit_rate_decode"]
            for percent in _PLOT_PERCENTS
        ]
        for name in names
    }
    return plot_curves(curves, _PLOT_PERCENTS)
