"""A model opened for a command: engine, tokenizer, and what must be said to the user on the way.

The one place that knows about the model that ships inside pearl.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kernels.cpu.warmup import compiled_in_this_process
from models.config_checks import architecture_of
from models.errors import GGUFError, UnsupportedTokenizer
from models.gguf import GGUFModel
from models.tokenizer import Tokenizer
from pearl_cli.cpu_cores import bound_threads, on_cores
from pearl_cli.engine import Engine
from pearl_cli.memory_plan import typed
from pearl_cli.open_engine import open_engine
from pearl_cli.open_model import in_memory_note, open_model
from pearl_cli.opened_engine import OpenedEngine
from pearl_cli.options import RunOptions
from pearl_cli.sizes import Size
from pearl_cli.terminal import Progress, Terminal

DEMO_BUDGET = Size(percent=50.0)  # so that the model that ships inside shows streaming at work


@dataclass(frozen=True, slots=True)
class Session:
    """An open model. `name` is how to call it to the user."""

    name: str
    opened: OpenedEngine
    tokenizer: Tokenizer
    terminal: Terminal

    @property
    def engine(self) -> Engine:
        return self.opened.engine


def demo_model() -> Path:
    """First shard of the model that ships inside the package."""
    import models.demo

    folder = Path(next(iter(models.demo.__path__)))
    shards = sorted(folder.glob("*-00001-of-*.gguf"))
    if not shards:
        raise FileNotFoundError(2, "the embedded model is missing from this installation", str(folder))
    return shards[0]


@contextmanager
def open_session(
    options: RunOptions, terminal: Terminal, use_profile: bool = True, gguf: GGUFModel | None = None
) -> Iterator[Session]:
    """Open the model of `options`, or go on with it where it is open already, and close it at the end. `use_profile`
    False for measurements, which start alike.

    Raises the errors of reading, planning and loading.
    """
    with on_cores(options), _open(options, terminal, use_profile, gguf) as session:
        yield session


@contextmanager
def _open(options: RunOptions, terminal: Terminal, use_profile: bool, gguf: GGUFModel | None) -> Iterator[Session]:
    use_profile = use_profile and not options.no_profile
    is_demo = options.model is None
    path = demo_model() if options.model is None else options.model
    gguf = gguf or open_model(path, options, terminal.note)
    try:
        tokenizer = tokenizer_of(gguf, path)
    except BaseException:
        gguf.close()
        raise
    for note in (*tokenizer.notes, in_memory_note(gguf)):
        if note is not None:
            terminal.note(note)
    default = DEMO_BUDGET if is_demo else None
    with (
        open_engine(gguf, options, default, terminal.note, _Stages(terminal), use_profile) as opened,
        bound_threads(options, terminal.note),
    ):
        terminal.end_progress()
        if options.verbose:
            _say_what_runs(opened, terminal)
        yield Session("the embedded demo model" if is_demo else path.name, opened, tokenizer, terminal)


def tokenizer_of(gguf: GGUFModel, path: Path) -> Tokenizer:
    """The tokenizer of a model that pearl runs; errors name the file. A file that is no whole model is refused as that,
    not for the vocabulary it lacks.
    """
    architecture_of(gguf)
    try:
        return Tokenizer.from_metadata(gguf.metadata)
    except (UnsupportedTokenizer, GGUFError) as error:
        raise type(error)(f"{path}: {error}") from error


_STAGES = {
    "compile": "compiling kernels (first run on this machine)",
    "store": "filling the store in memory",
    "load": "loading experts",
}


class _Stages:
    """Progress of opening, one bar a stage. Kernels that only come out of the cache are not worth a word."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._bars: dict[str, Progress] = {}

    def __call__(self, stage: str, done: int, total: int) -> None:
        if stage == "compile" and not compiled_in_this_process():
            return
        if stage not in self._bars:
            self._bars[stage] = Progress(self._terminal, _STAGES[stage])
        self._bars[stage](done, total)


def _say_what_runs(opened: OpenedEngine, terminal: Terminal) -> None:
    for line in opened.config.defaults_used:
        terminal.note(f"default used: {line}")
    slots = sum(opened.plan.slots.capacities)
    terminal.note(
        f"device {opened.device}, evict {opened.evict}, routing {opened.routing.label()}, "
        f"{slots} expert slots of {typed(opened.plan.slots.n_bytes)}, "
        f"context {opened.plan.needs.context}, ceiling {typed(opened.plan.ceiling_bytes, up=False)}"
    )
