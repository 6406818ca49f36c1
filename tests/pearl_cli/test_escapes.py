"""-e reads escapes as llama.cpp does; without it texts stay as they stand, and a \\n in one is told of."""

import json

import pytest

from models.errors import UsageError
from pearl_cli.__main__ import main
from pearl_cli.escapes import read_escapes, text_or_file, typed_text


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (r"a\nb\tc\rd", "a\nb\tc\rd"),
        (r"\'\"\\", "'\"\\"),
        (r"\\n", r"\n"),
        (r"\d\(\x4\xZZ", r"\d\(\x4\xZZ"),
        ("end\\", "end\\"),
        (r"\x41\x00", "A\0"),
        (r"\xC3\xA9 é", "é é"),
        ("\\\n", "\\\n"),
    ],
)
def test_escapes_are_llama_cpps(written, meant):
    assert read_escapes("-p", written) == meant


def test_bytes_that_are_no_text_are_refused():
    with pytest.raises(UsageError, match="-p: what its escapes stand for is not UTF-8"):
        read_escapes("-p", r"ab\xC3")


def test_a_text_stays_as_it_stands_and_a_newline_that_was_not_read_is_told_of(capsys):
    assert typed_text("-r", r"x\n", None) == r"x\n"
    assert "-r" in capsys.readouterr().err
    assert typed_text("-r", r"x\n", False) == r"x\n"
    assert typed_text("-p", r"\d+ \textbf", None) == r"\d+ \textbf"
    assert capsys.readouterr().err == ""
    assert typed_text("-r", r"x\n", True) == "x\n"


def test_a_file_is_read_with_e_alone_and_never_told_of(tmp_path, capsys):
    file = tmp_path / "code.txt"
    file.write_text('print("\\n")\n')
    assert text_or_file("-p", None, "-f", file, None) == 'print("\\n")'
    assert text_or_file("-p", None, "-f", file, True) == 'print("\n")'
    assert text_or_file("-p", None, "-f", None, True) is None
    assert capsys.readouterr().err == ""


QUESTION = "<|user|>What is 23 + 45?<|end|><|assistant|>"
ARGS = ["complete", "--temp", "0", "-n", "40", "--special", "--no-profile", "-c", "128", "--json"]


def completed(capsys, *args):
    assert main([*ARGS, *args]) == 0
    return json.loads(capsys.readouterr().out)


def test_complete_reads_them_in_prompt_and_stop(capsys):
    """The demo model answers in lines: the stop text ends its first one."""
    done = completed(capsys, "-e", "-p", QUESTION, "-r", r"45\n")
    assert (done["text"], done["finish_reason"]) == ("23 + ", "stop")
    assert "\n" in completed(capsys, "-p", QUESTION, "-r", r"45\n")["text"]
    plain = completed(capsys, "-p", QUESTION + "23 + 45\n")
    assert completed(capsys, "-e", "-p", QUESTION + r"23 + 45\n")["prompt_ids"] == plain["prompt_ids"]


def test_chat_reads_them_in_system_message_and_stop(monkeypatch):
    seen = []

    def reply(chat, text):
        seen.append((text, chat.conversation.system, chat._stop_strings))
        raise UsageError("no reply is needed here")

    monkeypatch.setattr("pearl_cli.chat.Chat.reply", reply)
    main(["chat", "-st", "--no-profile", "-c", "128", "-e", "-sys", r"a\tb", "-p", r"x\ny", "-r", r"z\n"])
    assert seen == [("x\ny", "a\tb", ["z\n"])]
