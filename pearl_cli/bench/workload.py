"""What a bench feeds the model: seeded random tokens, or a real text.

Never one repeated token, which would hit every cache.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from models.errors import UsageError


@dataclass(frozen=True, slots=True)
class Workload:
    """`text_ids` is the real prompt, or None for random tokens drawn from `seed`; teacher_forced: while decoding the
    text, or the random tokens, go on being fed whatever the model says, else its own greedy choice.
    """

    vocab_size: int
    seed: int
    text_ids: list[int] | None = None
    teacher_forced: bool = True

    def prompt(self, n_tokens: int) -> list[int]:
        """`n_tokens` to begin with. Raises UsageError where the text is too short."""
        if self.text_ids is None:
            return self._random(n_tokens, stream=0)
        if len(self.text_ids) < n_tokens:
            raise UsageError(f"--prompt-file holds {len(self.text_ids)} tokens; -p, -n and -d ask for {n_tokens}")
        return self.text_ids[:n_tokens]

    def continuation(self, n_tokens: int, after: int = 0) -> list[int]:
        """Tokens to feed while decoding, where they are forced; `after` so many of the text. Raises UsageError."""
        if self.text_ids is not None and self.teacher_forced:
            return self.prompt(after + n_tokens)[after:]
        return self._random(n_tokens, stream=1)

    def _random(self, n_tokens: int, stream: int) -> list[int]:
        drawn = np.random.default_rng([self.seed, stream]).integers(0, self.vocab_size, n_tokens)
        return [int(token_id) for token_id in drawn]
