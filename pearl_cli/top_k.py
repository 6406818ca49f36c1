"""The largest logits, found in memory that is kept from token to token: sampling allocates nothing of the vocabulary's
size as long as `top_k` limits the choice.
"""

from __future__ import annotations

import numpy as np

_BLOCK = 256


class TopK:
    """For float32 logits [vocab_size]."""

    def __init__(self, vocab_size: int) -> None:
        self._values = np.empty(vocab_size, np.float32)
        self._flags = np.empty(vocab_size, bool)

    def ids(self, logits: np.ndarray, top_k: int) -> np.ndarray:
        """Ids int64 of the `top_k` largest logits (all for 0), best first; of equal ones the smaller id comes first."""
        if not 0 < top_k < logits.size:
            return np.argsort(-logits, kind="stable")
        n_blocks = logits.size // _BLOCK
        if top_k <= n_blocks:
            # The top_k largest block maxima are top_k logits, so nothing below the least of them is among the largest.
            values = self._values[:n_blocks]
            np.max(logits[: n_blocks * _BLOCK].reshape(n_blocks, _BLOCK), axis=1, out=values)
        else:
            values = self._values
            values[:] = logits
        values.partition(values.size - top_k)
        candidates = np.flatnonzero(np.greater_equal(logits, values[values.size - top_k], out=self._flags))
        best: np.ndarray = candidates[np.argsort(-logits[candidates], kind="stable")[:top_k]]
        return best
