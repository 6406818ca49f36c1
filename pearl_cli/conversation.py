"""A chat as data: the turns so far, kept such that roles always alternate whatever was interrupted.

Knows nothing of terminals.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Conversation:
    """System text and turns; `turns` alternates user, assistant, user, ..."""

    system: str = ""
    turns: list[dict[str, str]] = field(default_factory=list)

    def messages(self) -> list[dict[str, str]]:
        """What the template is given: the system text first, when there is one."""
        head = [{"role": "system", "content": self.system}] if self.system else []
        return head + self.turns

    def ask(self, text: str) -> None:
        """Add a user turn. A user turn that got no answer at all is replaced, so that roles alternate."""
        if self.turns and self.turns[-1]["role"] == "user":
            self.turns.pop()
        self.turns.append({"role": "user", "content": text})

    def answer(self, text: str) -> None:
        """Keep a reply, also one that was cut short. An empty one drops its question with it."""
        if text:
            self.turns.append({"role": "assistant", "content": text})
        else:
            self.turns.pop()

    def take_back_reply(self) -> bool:
        """Drop the last reply and keep its question; False when there is none to drop."""
        if not self.turns or self.turns[-1]["role"] != "assistant":
            return False
        self.turns.pop()
        return True

    def take(self, messages: list[dict[str, str]]) -> None:
        """Go on from `messages`, which `messages()` gave. Raises ValueError for others, and nothing has changed."""
        head = 1 if messages and messages[0]["role"] == "system" else 0
        turns = messages[head:]
        roles = [turn["role"] for turn in turns]
        if roles != ["user", "assistant"] * (len(turns) // 2):
            raise ValueError("user and assistant do not take turns")
        self.system, self.turns = (messages[0]["content"] if head else ""), [dict(turn) for turn in turns]

    def clear(self) -> None:
        self.turns.clear()
