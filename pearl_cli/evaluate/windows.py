"""Cut a text into windows, as llama.cpp's llama-perplexity does.

Windows of the context's length follow each other without overlap; what is left at the end is not used. A window's
second half is scored, each token given all before it in the window ("half"), or everything but its first token ("all").
A model that wants a first token BOS gets it in place of each window's first token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from models.errors import UsageError

SCORED = ("half", "all")
LEAST_WINDOW = 4


@dataclass(frozen=True, slots=True)
class Window:
    """ids[first + 1 :] are scored, by the logits at positions first .. len(ids) - 2; ids[:first] only come before."""

    ids: tuple[int, ...]
    first: int

    @property
    def n_scored(self) -> int:
        return len(self.ids) - 1 - self.first


def cut_windows(ids: Sequence[int], length: int, scored: str = "half", bos_id: int | None = None) -> list[Window]:
    """Windows of `length` tokens. bos_id: None for a model that wants none. Raises UsageError for a text shorter than
    one window, ValueError for a length below LEAST_WINDOW or an unknown `scored`.
    """
    if scored not in SCORED:
        raise ValueError(f"scored {scored!r}; there are {', '.join(SCORED)}")
    if length < LEAST_WINDOW:
        raise ValueError(f"a window of {length} tokens")
    if len(ids) < length:
        raise UsageError(f"the text has {len(ids)} tokens, fewer than one window of {length}: lower -c or give more")
    first = length // 2 if scored == "half" else 0
    head = [] if bos_id is None else [bos_id]
    starts = range(0, len(ids) - length + 1, length)
    return [Window((*head, *ids[start + len(head) : start + length]), first) for start in starts]
