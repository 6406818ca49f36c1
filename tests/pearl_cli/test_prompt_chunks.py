"""-ub and -b as in llama.cpp, and the line after a long prompt that waited for experts."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from models.config import ModelConfig
from models.gguf import GGUFModel
from pearl_cli import prompt_advice
from pearl_cli.__main__ import main
from pearl_cli.engine import Generation
from pearl_cli.options import RunOptions, run_options
from pearl_cli.prompt_advice import chunk_advice
from pearl_cli.residency.stats import TokenStats
from tests.tiny_gguf import tiny_moe


@click.command()
@run_options
def echo(options: RunOptions) -> None:
    click.echo(options.ubatch_size)


@pytest.mark.parametrize(
    ("flags", "chunk"),
    [
        ([], 512),
        (["-ub", "2048"], 2048),
        (["-b", "2048"], 512),
        (["-b", "2048", "-ub", "4096"], 2048),
        (["-b", "64"], 64),
        (["--batch-size", "4096", "--ubatch-size", "8192"], 4096),
    ],
)
def test_the_smaller_of_both_counts(flags: list[str], chunk: int) -> None:
    result = CliRunner().invoke(echo, flags)
    assert (result.exit_code, result.output) == (0, f"{chunk}\n")


@pytest.fixture
def config(tmp_path: Path) -> ModelConfig:
    with GGUFModel.open(tiny_moe().write(tmp_path / "tiny.gguf")) as gguf:
        return ModelConfig.from_gguf(gguf)


def generation(n_tokens: int, prompt_ms: float, stall_ms: float) -> Generation:
    made = Generation(lambda _: iter(()))
    made.prompt_tokens, made.reused_tokens, made.prompt_ms = n_tokens + 100, 100, prompt_ms
    made.prompt_stats = TokenStats(n_tokens=n_tokens, stall_ms=stall_ms, miss_bytes=3 << 30)
    return made


def test_a_prompt_that_waited_is_told_of_longer_chunks(config: ModelConfig) -> None:
    line = chunk_advice(generation(1900, 40e3, 22e3), config, 512, 8192)
    assert line is not None
    assert "waited 22 of 40 s for 3072MiB of experts, read again for each of its 4 chunks" in line
    assert "; -ub 2048 makes 1, for " in line
    assert "-ub 2048" in str(chunk_advice(generation(5000, 40e3, 22e3), config, 512, 2048))  # no more than the context


@pytest.mark.parametrize(("n_tokens", "prompt_ms", "stall_ms", "chunk"), [
    (500, 40e3, 22e3, 512), (1900, 40e3, 4e3, 512), (1900, 3e3, 2e3, 512), (1900, 40e3, 22e3, 2048),
])  # fmt: skip
def test_others_are_not(config: ModelConfig, n_tokens: int, prompt_ms: float, stall_ms: float, chunk: int) -> None:
    assert chunk_advice(generation(n_tokens, prompt_ms, stall_ms), config, chunk, 8192) is None


def test_both_commands_say_it(
    tiny_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(prompt_advice, "_WORTH_SAYING_MS", 0.0)
    monkeypatch.setattr(prompt_advice, "_WORTH_SAYING_SHARE", 0.0)
    text = ["-m", str(tiny_path), "-p", "the quick brown fox jumps", "-n", "1", "--budget", "30%"]
    for command in (["complete"], ["chat", "-st"]):
        assert main([*command, *text, "-ub", "8"]) == 0
        assert "of experts, read again for each of its " in capsys.readouterr().err
        assert main([*command, *text, "-ub", "64"]) == 0
        assert "for each of its" not in capsys.readouterr().err
