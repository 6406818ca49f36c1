"""`pearl info`: what a model file holds, whether it runs here, and what it needs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pearl_cli.flag_files import NamedPath

if TYPE_CHECKING:
    from models.gguf import GGUFModel
    from pearl_cli.model_report import ModelReport

_VALUE_WIDTH = 100


@click.command("info", short_help="Show what a model file holds and whether it runs here.")
@click.argument("file", required=False, type=NamedPath(), metavar="MODEL")
@click.option("-m", "--model", type=NamedPath(), help="The same as MODEL.")
@click.option("--quant", metavar="TYPE|MIX", help="Show what a run with --quant would hold in memory.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
@click.option(
    "-v", "--verbose", is_flag=True, help="Show the metadata, and each default used for a key that is absent."
)
@click.option("--verify", is_flag=True, help="Read everything and compare with the checksums stored by pearl convert.")
def command(
    file: Path | None, model: Path | None, quant: str | None, as_json: bool, verbose: bool, verify: bool
) -> None:
    """Show what MODEL holds: any GGUF, any member of a split set; of a Hugging Face folder, what a run would make of
    it in memory.

    A model that pearl does not run is shown too, with the reason.
    """
    from pearl_cli.model_report import report_on
    from pearl_cli.open_model import open_model
    from pearl_cli.options import RunOptions

    if (file is None) == (model is None):
        raise click.UsageError("name one model: pearl info MODEL")
    path = file or model
    assert path is not None
    with open_model(path, RunOptions(quant=quant), lambda line: click.echo(line, err=True)) as gguf:
        if verify and gguf.memory is not None:
            raise click.UsageError("--verify is for files that pearl convert has written; nothing is written yet here")
        checked = _verify(gguf) if verify else None
        report = report_on(gguf)
        if as_json:
            click.echo(json.dumps(_as_json(gguf, report, verbose, checked), ensure_ascii=True))
        else:
            for line in _lines(gguf, report, verbose, checked):
                click.echo(line)


def _verify(gguf: GGUFModel) -> int:
    from pearl_cli.terminal import Progress, Terminal
    from pearl_cli.verify_checksums import verify_checksums

    return verify_checksums(gguf, Progress(Terminal(), "verifying"))


def _as_json(gguf: GGUFModel, report: ModelReport, verbose: bool, checked: int | None) -> dict[str, Any]:
    """Sizes in bytes; null where the file is not understood."""
    config = report.config
    roles = [asdict(role) | {"bits_per_weight": role.bits_per_weight} for role in report.roles]
    result: dict[str, Any] = {
        "path": str(gguf.paths[0]),
        "files": [path.name for path in gguf.paths],
        "file_bytes": report.file_bytes,
        "gguf_version": gguf.version,
        "architecture": report.architecture,
        "name": report.name,
        "supported": report.supported,
        "reasons": report.reasons,
        "parameters_total": report.parameters_total,
        "parameters_active": report.parameters_active,
        "num_layers": config.num_layers if config else None,
        "hidden_size": config.hidden_size if config else None,
        "context_length": config.context_length if config else None,
        "kv_bytes_per_token": report.kv_bytes_per_token,
        "state_bytes": config.state_bytes if config else None,
        "experts": asdict(report.experts) if report.experts else None,
        "floor_bytes": report.floor_bytes,
        "tokenizer": report.tokenizer,
        "has_chat_template": report.has_chat_template,
        "roles": roles,
        "defaults_used": list(config.defaults_used) if config else [],
        "unread_keys": list(config.unread_keys) if config else [],
    }
    if checked is not None:
        result["tensors_verified"] = checked
    if verbose:
        result["metadata"] = {key: _value_text(value) for key, value in gguf.metadata.items()}
    return result


def _lines(gguf: GGUFModel, report: ModelReport, verbose: bool, checked: int | None) -> Iterator[str]:
    from convert.shard_writer import size_text

    files = f"{len(gguf.paths)} files" if len(gguf.paths) > 1 else "1 file"
    yield f"{_safe(report.name)} ({_safe(report.architecture)}), {files}, {size_text(report.file_bytes)}"
    for label, text in _facts(report, checked):
        yield f"  {label:<12} {text}"
    yield ""
    titles = f"{'role':<13} {'types':<20} {'tensors':>8} {'weights':>9} {'size':>10} {'bits/weight':>12}"
    yield f"{titles} {'read a token':>13}"
    for role in report.roles:
        types = "+".join(sorted(role.type_bytes, key=lambda name: -role.type_bytes[name]))
        token = "?" if role.token_bytes is None else size_text(role.token_bytes)
        yield (
            f"{role.role:<13} {types:<20} {role.n_tensors:>8} {_count_text(role.n_weights):>9} "
            f"{size_text(role.n_bytes):>10} {role.bits_per_weight:>12.2f} {token:>13}"
        )
    if verbose:
        yield from _details(gguf, report)


def _facts(report: ModelReport, checked: int | None) -> Iterator[tuple[str, str]]:
    from convert.shard_writer import size_text

    yield "runs", "yes" if report.supported else "no"
    for reason in report.reasons:
        yield "", _printable(reason)
    active = "" if report.parameters_active is None else f", {_count_text(report.parameters_active)} active a token"
    yield "parameters", _count_text(report.parameters_total) + active
    config, experts = report.config, report.experts
    if config and report.kv_bytes_per_token:
        kv = size_text(report.kv_bytes_per_token)
        yield "layers", f"{config.num_layers}, hidden size {config.hidden_size}"
        yield "context", f"{config.context_length} tokens, KV cache {kv} a token (f16)"
        windows = [memory.window for memory in config.layer_memory if memory.window]
        if windows:
            yield "", f"{len(windows)} layers see the last {max(windows)} tokens and keep not many more"
        if config.state_bytes:
            states = sum(bool(memory.state) for memory in config.layer_memory)
            yield "", f"{states} layers keep a state instead, {size_text(config.state_bytes)} in all at any length"
    if experts:
        count = (
            f"{experts.num_experts} in each of {experts.num_moe_layers} layers, {experts.num_experts_per_tok} a token"
        )
        yield "experts", f"{count}; {experts.layout}"
        sizes = f"{size_text(experts.total_bytes)} in all, {size_text(experts.one_bytes)} each"
        yield "", f"{sizes}, {size_text(experts.token_bytes)} read a token when none is in memory"
    tokenizer = report.tokenizer
    names = f"{_safe(str(tokenizer['model']))}, pre {_safe(str(tokenizer['pre']))}, {tokenizer['vocab_size']} tokens"
    yield "tokenizer", names if tokenizer["vocab_size"] else "none"
    yield "template", "yes" if report.has_chat_template else "none (pearl chat needs --template)"
    if report.floor_bytes:
        at = f"at a context of {report.context_planned} tokens"
        yield (
            "memory",
            f"at least {size_text(report.floor_bytes)} beside the process itself, {at} (pearl plan shows more)",
        )
    if checked is not None:
        yield "verified", f"{checked} tensors agree with their checksums"


def _details(gguf: GGUFModel, report: ModelReport) -> Iterator[str]:
    config = report.config
    if config:
        yield ""
        yield "defaults used for keys that are absent:"
        yield from (f"  {line}" for line in config.defaults_used)
        if config.unread_keys:
            yield f"keys that mean nothing here: {_safe(', '.join(config.unread_keys))}"
    yield ""
    yield f"metadata (GGUF version {gguf.version}, alignment {gguf.alignment}):"
    yield from (f"  {_safe(key)} = {_value_text(value)}" for key, value in gguf.metadata.items())


def _value_text(value: Any) -> str:
    """A metadata value on one line: long texts cut, arrays by length and first items."""
    if isinstance(value, (bool, int, float)):
        return str(value)
    if isinstance(value, str):
        return _safe(value)
    first = ", ".join(_safe(str(item)) for item in value[:4])
    return f"[{first}{', ...' if len(value) > 4 else ''}] ({len(value)} items)"


def _printable(text: str) -> str:
    """`text` with control characters and lone surrogates, which a file may hold, escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _safe(text: str) -> str:
    """The same for a text of any length, cut to fit a line."""
    return _printable(text) if len(text) <= 2 * _VALUE_WIDTH else _printable(text[:_VALUE_WIDTH]) + "..."


def _count_text(n: int) -> str:
    """1234567 -> '1.2 M'."""
    for unit, size in (("B", 10**9), ("M", 10**6), ("K", 10**3)):
        if n >= size:
            return f"{n / size:.1f} {unit}"
    return str(n)
