"""The flags of a run and their defaults: the only place where a default is written.

`RunOptions` is what the runtime is handed; `run_options` adds the flags to a click command and passes one
`RunOptions` as `options`.
Sampling flags live beside the sampler's own parameters in `pearl_cli.sampling_options`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import click

from pearl_cli.cpu_core_options import CORE_FLAGS
from pearl_cli.flag_files import NamedFile, NamedPath
from pearl_cli.routing.steering import Steering
from pearl_cli.routing_options import ROUTING_FLAGS
from pearl_cli.sizes import Size, SizeParam

EVICTIONS = ("auto", "pearl", "lru", "lfu", "lfru", "least-stale", "static", "random")
KV_TYPES = ("f32", "f16", "q8_0")
DEVICES = ("auto", "cpu", "cuda")
MISSES = ("copy", "cpu", "auto")
SPLITS = ("even", "uneven")
STORES = ("auto", "disk", "ram")


class OneCount(click.IntRange):
    """A whole number from 1; of a list as llama-bench takes it, it is said that a run has one value."""

    name = "number"

    def __init__(self) -> None:
        super().__init__(min=1)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if "," in str(value):
            self.fail(f"'{value}' is a list and a run has one value; run pearl once for each", param, ctx)
        return int(super().convert(value, param, ctx))


class StopText(click.ParamType[str]):
    """A text that ends a reply; an empty one would end every reply before it begins."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if not str(value):
            self.fail("an empty text would stop every reply before it begins", param, ctx)
        return str(value)


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How to open and run a model. `model` None means the embedded demo model."""

    model: Path | None = None
    ctx_size: int | None = None  # None: min(4096, trained); 0: as trained
    threads: int = 0  # 0: all cores this process may use
    cpu_mask: frozenset[int] | None = None  # cores, as `cpu_range`: both together; None: all that the process may use
    cpu_range: frozenset[int] | None = None
    cpu_strict: str = "0"  # "1": each compute thread on a core of its own
    ram: Size | None = None  # ceiling for the whole process
    vram: Size | None = None  # ceiling for what this process takes of the GPU's memory
    budget: Size | None = None  # expert slots alone
    evict: str = "auto"
    predictor: str = "auto"  # a name or a file, see pearl_cli.predict.choose
    stride: int = 1  # layers ahead
    usage: Path | None = None  # recorded routing that static eviction and the split go by
    split: str = "even"  # of the budget over layers
    route_trace: Path | None = None  # recorded routing instead of the model's own
    routing: str = "exact"
    lambda_: str | None = None  # this and the next four: see pearl_cli.routing.settings
    top_j: int | None = None
    inserts: int | str | None = None
    steer: Steering | None = None
    residency: Size | None = None
    io_threads: int = 0  # 0: chosen by the runtime
    throttle: Size | None = None  # bytes a second
    store: str = "auto"  # where the shards are: disk or ram
    quant: str | None = None  # convert into RAM with this type
    device: str = "auto"
    miss: str = "copy"  # where experts that the GPU lacks are computed
    ubatch_size: int = 512  # prompt tokens computed at a time
    cache_type_k: str = "f16"
    cache_type_v: str = "f16"
    seed: int = -1  # -1 draws one
    no_profile: bool = False
    switched_off: tuple[str, ...] = ()  # pieces of the copy engine, for measuring: see residency.ablations
    verbose: bool = False


_FLAGS = [
    click.option(
        "-m",
        "--model",
        type=NamedPath(),
        help="Model: any shard of a pearl set, a stock GGUF, or a Hugging Face folder, which is converted into RAM.",
    ),
    click.option(
        "--quant",
        metavar="TYPE|MIX",
        help="Convert the model into RAM with this type, as pearl convert does on the disk; nothing is written.",
    ),
    click.option(
        "--store",
        type=click.Choice(STORES),
        default="auto",
        show_default=True,
        help="Where experts are kept: read from the disk when needed, or all in RAM from the start (ram); auto is ram "
        "for what has to be converted.",
    ),
    click.option(
        "-c",
        "--ctx-size",
        type=click.IntRange(min=0),
        help="Context length in tokens; 0 is the trained length.  [default: 4096 or the trained length]",
    ),
    click.option("-t", "--threads", type=OneCount(), help="Compute threads.  [default: all cores]"),
    *CORE_FLAGS,
    click.option("--ram", type=SizeParam(), metavar="SIZE", help="Byte ceiling of the whole process, e.g. 6GiB."),
    click.option(
        "--vram", type=SizeParam(above_zero=True), metavar="SIZE", help="Byte ceiling of its GPU memory, e.g. 8GiB."
    ),
    click.option(
        "--budget",
        type=SizeParam(allow_percent=True),
        metavar="SIZE|PCT",
        help="Fast memory for experts alone, e.g. 2GiB or 40%.",
    ),
    click.option(
        "--evict",
        type=click.Choice(EVICTIONS),
        default="auto",
        show_default=True,
        help="Which expert leaves when a slot is needed.",
    ),
    click.option(
        "--usage",
        type=NamedFile(),
        metavar="TRACE",
        help="Routing recorded by pearl trace: what --evict static and --split uneven go by.  [default for static: the "
        "saved profile of earlier sessions]",
    ),
    click.option(
        "--split",
        type=click.Choice(SPLITS),
        default="even",
        show_default=True,
        help="Slots for every layer alike, or as many as make the fewest misses on the --usage trace.",
    ),
    click.option(
        "--predictor",
        default="auto",
        show_default=True,
        metavar="NAME|FILE",
        help="What forecasts experts: auto (a forecast file beside the model, and next-gate: what pays is found out "
        "while running), none, next-gate, token-table, ema, or a file of pearl train.",
    ),
    click.option(
        "--stride", type=click.IntRange(1, 8), default=1, show_default=True, help="How many layers ahead to forecast."
    ),
    *ROUTING_FLAGS,
    click.option("--io-threads", type=click.IntRange(min=1, max=64), help="Threads that read experts from disk."),
    click.option(
        "--throttle",
        type=SizeParam(above_zero=True),
        metavar="SIZE",
        help="Read at most this many bytes a second (emulates a slower disk).",
    ),
    click.option(
        "--device",
        type=click.Choice(DEVICES),
        default="auto",
        show_default=True,
        help="Where to compute; auto is a GPU (cuda, also ROCm) if there is one.",
    ),
    click.option(
        "--miss",
        type=click.Choice(MISSES),
        default="copy",
        show_default=True,
        help="What becomes of experts that the GPU lacks: copied there, computed on the CPU, or what measures cheaper. "
        "CPU and GPU round differently.",
    ),
    click.option(
        "-ub",
        "--ubatch-size",
        type=OneCount(),
        default=512,
        show_default=True,
        help="Prompt tokens computed at a time. Experts that are not in memory are read once for so many.",
    ),
    click.option("-b", "--batch-size", type=OneCount(), help="As -ub, of which the smaller one counts."),
    click.option(
        "-ctk",
        "--cache-type-k",
        type=click.Choice(KV_TYPES),
        default="f16",
        show_default=True,
        help="Type of the cached keys.",
    ),
    click.option(
        "-ctv",
        "--cache-type-v",
        type=click.Choice(KV_TYPES),
        default="f16",
        show_default=True,
        help="Type of the cached values.",
    ),
    click.option(
        "-s", "--seed", type=click.IntRange(min=-1, max=2**32 - 1), help="Random seed; -1 draws one.  [default: -1]"
    ),
    click.option("--no-profile", is_flag=True, help="Neither load nor save which experts this model used most."),
    click.option("-v", "--verbose", is_flag=True, help="Say which path ran and which defaults were used."),
]
_RENAMED = {"threads": 0, "io_threads": 0, "seed": -1}  # flags whose absence is a number


def run_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the shared run flags; the command receives them gathered as `options: RunOptions`."""
    names = {field.name for field in fields(RunOptions)}

    @functools.wraps(command)
    def wrapper(**kwargs: Any) -> Any:
        own = {name: kwargs.pop(name) for name in list(kwargs) if name in names}
        batch_size = kwargs.pop("batch_size")
        if batch_size is not None:
            own["ubatch_size"] = min(own["ubatch_size"], batch_size)
        for name, absent in _RENAMED.items():
            if own.get(name) is None:
                own[name] = absent
        return command(options=RunOptions(**own), **kwargs)

    for flag in reversed(_FLAGS):
        wrapper = flag(wrapper)
    return wrapper
