"""Write texts of the demo corpus as .jsonl, one list of chat messages a line: `python -m models.demo.texts -o FILE`.

Training conversations by default (what the forecast is trained on); `--held-out DOMAIN` writes exchanges that no
training conversation contains (what it is judged on).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

from models.demo.corpus import DOMAINS, Message, conversation, exchange

SEED = 4242
_EXCHANGES_PER_LINE = 4


def training_texts(count: int, seed: int = SEED) -> Iterator[list[Message]]:
    """`count` conversations from the training side of the split."""
    return (conversation(seed, index) for index in range(count))


def held_out_texts(domains: list[str], count: int, seed: int = SEED) -> Iterator[list[Message]]:
    """`count` conversations of held-out exchanges; with several domains each exchange comes from the next one."""
    for line in range(count):
        messages: list[Message] = []
        for turn in range(_EXCHANGES_PER_LINE):
            drawn = exchange(domains[turn % len(domains)], seed, line * _EXCHANGES_PER_LINE + turn, held_out=True)
            messages += [{"role": "user", "content": drawn.user}, {"role": "assistant", "content": drawn.assistant}]
        yield messages


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("-n", "--count", type=int, default=100, help="conversations to write")
    parser.add_argument("--held-out", choices=[*DOMAINS, "switch"], help="`switch` changes domain at every exchange")
    parser.add_argument("--seed", type=int, default=SEED)
    args = parser.parse_args()
    if args.held_out is None:
        texts = training_texts(args.count, args.seed)
    else:
        texts = held_out_texts(list(DOMAINS) if args.held_out == "switch" else [args.held_out], args.count, args.seed)
    args.out.write_text("".join(json.dumps(text, ensure_ascii=False) + "\n" for text in texts), encoding="utf-8")


if __name__ == "__main__":
    main()
