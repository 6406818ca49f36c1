"""`pearl chat`, piped: turns, slash commands, faults that keep the session."""

import io
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from models.errors import ReadFailure
from pearl_cli.__main__ import main
from pearl_cli.conversation import Conversation
from pearl_cli.residency.disk_reader import DiskReader

ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Done:
    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def pearl(capsys, monkeypatch):
    """Run `pearl chat` in this process with `stdin` piped in."""

    def run(*args, stdin=""):
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        code = main(["chat", *map(str, args)])
        return Done(code, *capsys.readouterr())

    return run


def test_piped_line_without_newline_is_answered_once(tiny_path):
    command = [sys.executable, "-m", "pearl_cli", "chat", "-m", str(tiny_path), "-n", "5", "--temp", "0"]
    done = subprocess.run(command, cwd=ROOT, input="hi", capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert done.stdout.count("\n") == 1
    assert "\x1b" not in done.stdout + done.stderr
    assert ">" not in done.stderr


@pytest.mark.parametrize("stdin", ["", "\n\n"])
def test_no_input_is_no_turn(pearl, tiny_path, stdin):
    done = pearl("-m", tiny_path, stdin=stdin)
    assert (done.returncode, done.stdout) == (0, "")


def test_a_reply_that_the_context_cuts_short_is_marked(pearl, tiny_path):
    """The first reply fills the context; the second turn does not fit it."""
    done = pearl("-m", tiny_path, "-c", "32", "--temp", "0", stdin="hi\nhi\n")
    cut, refused = done.stderr.splitlines()
    assert cut.startswith("warning: the context of 32 tokens is full, so that the text ends here; a larger -c")
    assert "does not fit the context of 32" in refused
    assert pearl("-m", tiny_path, "-c", "32", "-n", "4", "--temp", "0", stdin="hi\n").stderr == ""


def test_a_full_context_can_be_cleared(pearl, tiny_path):
    done = pearl("-m", tiny_path, "-c", "32", "-n", "4", stdin=f"{'long ' * 40}\nhi\n")
    assert done.returncode == 0
    assert "give a larger -c (up to 128), or /clear the conversation" in done.stderr
    assert done.stdout.count("\n") == 1  # the next turn is answered


def test_prompt_flag_with_empty_stdin(pearl, tiny_path):
    done = pearl("-m", tiny_path, "-p", "hi", "-n", "3", "--temp", "0")
    assert (done.returncode, done.stdout.count("\n")) == (0, 1)


def test_commands_work_piped_and_faults_keep_the_session(pearl, tiny_path):
    settings = "/set temp 0\n/set temp -3\n/set bogus 1\n"
    script = f"/help\nhello\n/nosuch\n{settings}/regen\n/stats\n/system be brief\n/clear\n/exit\nafter\n"
    done = pearl("-m", tiny_path, "-n", "3", "--budget", "50%", stdin=script)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 2, "one reply, one regenerated, none after /exit"
    for part in ("/regen", "/nosuch is no command", "temp 0", "bogus", "hit rate", "system text set", "forgotten"):
        assert part in done.stderr


def test_a_template_that_refuses_says_so_and_the_session_goes_on(pearl, tiny_path):
    check = "{% if messages[-1].content == 'bad' %}{{ raise_exception('no such turn') }}{% endif %}"
    refusing = check + "{{ messages[-1].content }}"
    done = pearl("-m", tiny_path, "-n", "3", "--chat-template", refusing, stdin="bad\ngood\n")
    assert done.returncode == 0
    assert "no such turn" in done.stderr
    assert done.stdout.count("\n") == 1


def test_unreadable_prompt_file_and_bad_kwargs(pearl, tiny_path):
    assert pearl("-m", tiny_path, "-f", "missing.txt").returncode == 2
    assert "JSON object" in pearl("-m", tiny_path, "--chat-template-kwargs", "[1]").stderr


def test_conversation_keeps_roles_alternating():
    talk = Conversation(system="S")
    talk.ask("one")
    talk.answer("")
    talk.ask("two")
    talk.answer("partial")
    talk.ask("three")
    assert [m["role"] for m in talk.messages()] == ["system", "user", "assistant", "user"]
    assert talk.messages()[1]["content"] == "two"
    talk.answer("done")
    assert talk.take_back_reply()
    assert not talk.take_back_reply()
    assert talk.turns[-1] == {"role": "user", "content": "three"}


def test_a_read_that_fails_ends_the_reply_and_not_the_session(pearl, tiny_path, monkeypatch):
    """The next turn reads again, and says what it says in a session whose reads never failed."""
    flags = ["-m", tiny_path, "-n", "6", "--temp", "0", "--budget", "30%", "--no-profile"]
    whole = pearl(*flags, stdin="/clear\ntwo\n")
    plain, reads = DiskReader.read, []

    def read(reader, file_index, offset, out, needed_bytes):
        reads.append(offset)
        if len(reads) == 40:
            raise ReadFailure(f"experts: reading at byte {offset} failed: Input/output error")
        plain(reader, file_index, offset, out, needed_bytes)

    monkeypatch.setattr(DiskReader, "read", read)
    done = pearl(*flags, stdin="one\n/clear\ntwo\n")
    assert (done.returncode, done.stderr.count("Input/output error")) == (0, 1)
    assert done.stdout.endswith(whole.stdout)


def test_the_seed_that_set_shows_reproduces_the_chat(pearl, tiny_path):
    args = ["-m", tiny_path, "-n", "8", "--temp", "1.2"]
    first = pearl(*args, stdin="/set\nhello\nagain\n")
    seed = re.search(r"seed (\d+)", first.stderr)[1]
    assert pearl(*args, "-s", seed, stdin="hello\nagain\n").stdout == first.stdout
