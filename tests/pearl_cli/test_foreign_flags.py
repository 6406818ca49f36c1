"""Every flag in the help of llama-completion and llama-bench is one of pearl's, or is answered.

llama_cpp_flags.txt holds the names as those programs (build of ggml 0.25) list them, VALUE behind those that take one.
"""

from pathlib import Path

import click
import pytest

from pearl_cli.__main__ import main
from pearl_cli.foreign_flags import answers_foreign_flags
from pearl_cli.llama_cpp_flags import FLAGS, RUN
from pearl_cli.main import cli

LIST = Path(__file__).with_name("llama_cpp_flags.txt")
PROGRAMS = {"llama-completion": ("chat", "complete"), "llama-bench": ("bench",)}
OF_ANOTHER_MEANING = {"--usage"}  # pearl's takes a trace


def options(name: str) -> dict[str, click.Option]:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    return {
        opt: param
        for param in command.params
        if isinstance(param, click.Option)
        for opt in (*param.opts, *param.secondary_opts)
    }


def listed() -> list[tuple[str, str, bool]]:
    """(command, flag, whether llama.cpp's takes a value), for each command that stands for a program of the list."""
    found, commands = [], ()
    for line in LIST.read_text().splitlines():
        if line.startswith("#"):
            commands = PROGRAMS[line.split()[-1]]
            continue
        names = line.split()
        found += [(c, name, names[-1] == "VALUE") for c in commands for name in names if name != "VALUE"]
    return found


@pytest.mark.parametrize("command", [command for commands in PROGRAMS.values() for command in commands])
def test_every_flag_of_llama_cpp_is_known_and_takes_a_value_where_its_own_does(command, capsys):
    main([command, "--help"])
    capsys.readouterr()
    known = options(command) | {"-h": None, "--help": None}
    flags = [(name, takes) for c, name, takes in listed() if c == command and name not in OF_ANOTHER_MEANING]
    assert len(flags) > 40
    assert not [name for name, _ in flags if name not in known]
    for name, takes in flags:
        option = known[name]
        assert option is None or option.is_flag != takes, name


@pytest.mark.parametrize("command", RUN)
def test_what_pearl_lacks_is_refused_in_a_line_that_names_flag_and_way_out(command, capsys):
    for flag in (flag for flag in FLAGS if command in flag.commands):
        for name in flag.names.split():
            value = {"": [], "V": ["17"], "V?": ["never"]}[flag.takes]
            if flag.kept == {""}:
                continue
            assert main([command, name, *value]) == 2, name
            error = capsys.readouterr().err
            assert error.startswith(f"pearl {command}: {' '.join([name, *value])} is llama.cpp's; here {flag.answer}")
            assert error.count("\n") == 1


@pytest.mark.parametrize(
    "args", [["--jinja"], ["--no-mmap"], ["-fa"], ["-fa", "on"], ["-lm", "none"], ["--no-warmup"], ["--simple-io"]]
)
@pytest.mark.parametrize("command", ["chat", "complete"])
def test_what_pearl_does_anyway_is_taken_with_a_line(command, args, capsys):
    assert main([command, *args, "-p", "x", "-m", "missing.gguf"]) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith(f"{args[0]}: ")
    assert "missing.gguf" in second


def test_a_foreign_flag_is_no_value_of_another(capsys):
    """`-fa` is not `-f a`, `-ngl 9` not `-n gl`; yet a value that looks like one stays a value."""
    assert main(["complete", "-m", "missing.gguf", "-p", "-ngl"]) == 2
    assert capsys.readouterr().err == "pearl: missing.gguf: no such file\n"


@pytest.mark.parametrize("command", ["eval", "trace"])
def test_commands_without_a_program_of_their_own_answer_what_is_of_the_run(command, capsys):
    assert main([command, "-m", "missing.gguf", "-f", __file__, "-fa", "on", "--no-mmap", "-ngl", "9"]) == 2
    notes = capsys.readouterr().err.splitlines()
    assert [line.split()[0] for line in notes[:-1]] == ["-fa:", "--no-mmap:"]
    assert notes[-1].startswith(f"pearl {command}: -ngl 9 is llama.cpp's; here ")


def test_help_does_not_list_them(capsys):
    main(["complete", "--help"])
    assert "-ngl" not in capsys.readouterr().out


def test_a_flag_of_the_commands_own_is_not_answered():
    with pytest.raises(ValueError, match="has -fa itself"):
        answers_foreign_flags(click.Command("chat", params=[click.Option(["-fa", "fa"])]))
