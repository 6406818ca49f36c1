"""The command table and the one place that catches errors.

Commands are imported only when they run, so `pearl --help` stays light.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import click

from models.errors import PearlError

COMMANDS = {
    "chat": "Talk to a model; without -m, to the one that ships inside.",
    "complete": "Continue a text as it is, without a chat template.",
    "bench": "Measure prompt and generation speed, hit rate and bytes moved.",
    "eval": "Measure perplexity, and the price of cache-aware routing.",
    "convert": "Turn a Hugging Face folder or a GGUF into pearl shards.",
    "simulate": "Replay recorded routing through the eviction policies.",
    "trace": "Record which experts a model chooses on given texts.",
    "train": "Train a forecast of expert demand from a recorded trace.",
    "info": "Show what a model file holds and whether it runs here.",
    "plan": "Show where the bytes of a run would go under a ceiling.",
    "synth": "Write a model of a known shape with random weights, for speed work.",
    "tokenize": "Show the token ids of a text.",
}


class LazyGroup(click.Group):
    """A group that imports `pearl_cli.commands.NAME` on demand and takes help lines from COMMANDS."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"pearl_cli.commands.{name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


def _print_version(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        from importlib.metadata import PackageNotFoundError, version

        try:
            click.echo(f"pearl {version('pearl-moe')}")
        except PackageNotFoundError:
            click.echo("pearl (run from a source tree, not installed)")
        ctx.exit()


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_print_version,
    help="Show the version and exit.",
)
def cli(debug: bool) -> None:
    """Run Mixture-of-Experts language models larger than fast memory."""


def run(args: list[str]) -> int:
    """Run the command line `args`; every fault of the user's becomes one line on stderr and its exit code."""
    debug = "--debug" in args or bool(os.environ.get("PEARL_DEBUG"))
    # --debug may stand anywhere on the line; click knows it only before the command.
    args = [arg for arg in args if arg != "--debug"]
    with _count_interrupts() as interrupts:
        return _run(args, debug, interrupts)


def _run(args: list[str], debug: bool, interrupts: list[int]) -> int:
    try:
        result = cli.main(args=args, prog_name="pearl", standalone_mode=False)
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.ctx.get_help() if error.ctx else cli.get_help(click.Context(cli)))
        return 0
    except click.ClickException as error:
        where = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else _asked_for(args)
        return _report(error, f"{where}: {error.format_message()} (see {where} --help)", error.exit_code, debug)
    except (KeyboardInterrupt, click.Abort):
        return _interrupted()
    except ImportError:
        # An extension module turns a Ctrl-C during its import into an ImportError of its own.
        if not interrupts:
            raise
        return _interrupted()
    except SystemExit:  # click's answer to a broken pipe, with streams that no longer complain
        return 0
    except PearlError as error:
        return _report(error, f"pearl: {error}", error.exit_code, debug)
    except BrokenPipeError:
        return 0
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        return _report(error, f"pearl: {place}{error.strerror or error}", 1, debug)
    except MemoryError as error:
        return _report(error, "pearl: out of memory; lower --ram, --budget or -c", 1, debug)


def _asked_for(args: list[str]) -> str:
    """The command that click has not told of a fault in its line, as of a flag without its value."""
    return f"pearl {args[0]}" if args and args[0] in COMMANDS else "pearl"


@contextmanager
def _count_interrupts() -> Iterator[list[int]]:
    """A list that grows by one with each Ctrl-C that reaches Python's usual handler, which raises as before."""
    seen: list[int] = []

    def note(signum: int, frame: FrameType | None) -> None:
        seen.append(signum)
        signal.default_int_handler(signum, frame)

    usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if not usual or threading.current_thread() is not threading.main_thread():
        yield seen
        return
    signal.signal(signal.SIGINT, note)
    try:
        yield seen
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _interrupted() -> int:
    print("interrupted", file=sys.stderr)
    return 130


def _report(error: BaseException, message: str, exit_code: int, debug: bool) -> int:
    if debug:
        import traceback

        traceback.print_exception(error)
    print(" ".join(message.split("\n")), file=sys.stderr)
    return exit_code
