"""`/save` and `/load`: a conversation as one line of JSON, a list of messages as `pearl eval` and `pearl trace` read.
"""

from __future__ import annotations

import json
from pathlib import Path

from models.errors import FileError
from pearl_cli.conversation import Conversation
from pearl_cli.flag_files import check_place, file_of
from pearl_cli.result_file import result_file
from pearl_cli.text_file import read_text


def save_conversation(path: Path, conversation: Conversation) -> str:
    """Write it, and what to tell the user. Raises FileError, WriteFailure; an earlier file is then as it was."""
    check_place("/save", path)
    with result_file(path, "/save") as place:
        place.write_text(json.dumps(conversation.messages(), ensure_ascii=False) + "\n", encoding="utf-8")
    n_turns = len(conversation.turns) // 2
    return f"{n_turns} {'turn is' if n_turns == 1 else 'turns are'} in {path}"


def load_conversation(path: Path, conversation: Conversation) -> str:
    """Go on from a saved one, and what to tell the user. Raises FileError, and nothing has changed."""
    with file_of("/load"):
        text = read_text(path)
    try:
        messages = json.loads(text)
        if not isinstance(messages, list) or not all(_is_message(each) for each in messages):
            raise ValueError("no list of messages with role and content")
        json.dumps(messages, ensure_ascii=False).encode()  # half a character: a UnicodeError, which is a ValueError
        conversation.take(messages)
    except (ValueError, RecursionError) as error:
        raise FileError(f"/load {path}: not a conversation of /save ({error})") from error
    n_turns = len(conversation.turns) // 2
    return f"{n_turns} {'turn' if n_turns == 1 else 'turns'} from {path}; the next message goes on from there"


def _is_message(entry: object) -> bool:
    return isinstance(entry, dict) and isinstance(entry.get("role"), str) and isinstance(entry.get("content"), str)
