"""Show where the bytes of a run would go under a ceiling, and the least ceiling that works. Loads no weights."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import click

from pearl_cli.flag_files import NamedPath
from pearl_cli.options import RunOptions, run_options


@click.command(name="plan", help=__doc__)
@click.argument("file", required=False, type=NamedPath(), metavar="[MODEL]")
@run_options
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def command(options: RunOptions, file: Path | None, as_json: bool) -> None:
    record = plan_record(dataclasses.replace(options, model=file or options.model))
    if as_json:
        click.echo(json.dumps(record, indent=1))
        return
    for name, value in record.items():
        if name.endswith("_bytes"):
            click.echo(f"{name.removesuffix('_bytes').replace('_', ' '):<28} {value / 2**20:10.1f} MiB")
        else:
            click.echo(f"{name.replace('_', ' '):<28} {value:>10}")


def plan_record(options: RunOptions) -> dict[str, Any]:
    """The plan as a flat record; raises what opening the model would raise."""
    from pearl_cli.check_run import check_run
    from pearl_cli.cpu_cores import on_cores
    from pearl_cli.groundwork import prepare
    from pearl_cli.memory_plan import RESERVE_BYTES
    from pearl_cli.open_model import open_model
    from pearl_cli.routing.settings import routing_settings
    from pearl_cli.session import DEMO_BUDGET, demo_model, tokenizer_of
    from pearl_cli.start_profile import start_profile

    def note(line: str) -> None:
        click.echo(line, err=True)

    path = options.model or demo_model()
    with on_cores(options), open_model(path, options, note) as gguf:
        # A run's process holds the tokenizer too, and its weight counts under the ceiling.
        tokenizer = tokenizer_of(gguf, path)
        settings = routing_settings(options)
        ground = prepare(gguf, options, None if options.model else DEMO_BUDGET, note)
        profile = start_profile(ground, gguf, options, settings, False, note)
        check_run(ground, gguf, options, settings, profile)
        del tokenizer
    config, places, plan = ground.config, ground.places, ground.plan
    experts = config.router.num_experts * sum(1 for size in places.slot_bytes if size)
    host = ground.on_device.host.n_bytes if ground.on_device is not None else None
    return {
        "model": config.name or config.architecture,
        "device": ground.device,
        "context": plan.needs.context,
        "process_bytes": plan.needs.process_bytes,
        "weight_bytes": plan.needs.weight_bytes,
        "kv_bytes": plan.needs.kv_bytes,
        "workspace_bytes": plan.needs.workspace_bytes,
        "reserve_bytes": RESERVE_BYTES,
        "expert_slot_bytes": plan.slots.n_bytes,
        "total_bytes": plan.total_bytes,
        "ceiling_bytes": plan.ceiling_bytes,
        "floor_bytes": plan.floor_bytes,
        "experts": experts,
        "experts_kept": sum(plan.slots.capacities),
        "expert_total_bytes": places.expert_bytes_total,
        **({} if host is None else {"host_expert_slot_bytes": host}),
    }
