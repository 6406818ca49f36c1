"""What one layer's past says about its experts: decayed use frequencies and reuse gaps. Counted over all text of a
session, as the slots are. `record` defines it; `record_all` is its compiled form.
"""

from __future__ import annotations

import numpy as np

DECAYS = (0.8, 0.95, 0.99)  # per event: about the last 5, 20 and 100 tokens
_GAP_SMOOTHING = 0.2  # weight of the newest reuse gap
NUM_FEATURES = len(DECAYS) + 2


class ReuseHistory:
    """frequency float64 [len(DECAYS), E]: decayed share of events that used an expert; gap float64 [E]: moving mean
    of the events between two uses.
    """

    __slots__ = ("_clock", "_decay", "_last_use", "frequency", "gap")

    def __init__(self, num_experts: int, num_experts_per_tok: int) -> None:
        share = num_experts_per_tok / num_experts
        self._decay = np.array(DECAYS)[:, None]
        self.frequency = np.full((len(DECAYS), num_experts), share)
        self.gap = np.full(num_experts, 1.0 / share)
        self._last_use = np.zeros(num_experts, np.int64)
        self._clock = 0

    def record(self, expert_ids: np.ndarray) -> None:
        """One event: the distinct experts that one token used."""
        self._clock += 1
        self.frequency *= self._decay
        self.frequency[:, expert_ids] += 1.0 - self._decay
        last = self._last_use[expert_ids]
        self.gap[expert_ids] += _GAP_SMOOTHING * (self._clock - last - self.gap[expert_ids])
        self._last_use[expert_ids] = self._clock

    def record_all(self, topk_ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Events topk_ids [T, K] in order. Returns what was known right after each: features float32 [T, NUM_FEATURES,
        E] (log odds of each frequency, log of age + 1 and of gap) and the slowest frequency float64 [T, E].
        """
        # Imported here: numba takes half a second to load, and replays without a trained forecast do not come here.
        from kernels.cpu.reuse_history import record_all

        n_tokens, num_experts = len(topk_ids), self.gap.size
        features = np.empty((n_tokens, NUM_FEATURES, num_experts), np.float32)
        slowest = np.empty((n_tokens, num_experts))
        record_all(topk_ids.astype(np.int64), *self.begin_events(n_tokens), features, slowest)
        return features, slowest

    def begin_events(self, count: int) -> tuple[np.ndarray, float, np.ndarray, np.ndarray, np.ndarray, int]:
        """What compiled code needs to record the next `count` events, which count as seen from here on: decay,
        smoothing of gaps, frequency, gap, last uses, and the clock before them.
        """
        before = self._clock
        self._clock += count
        return self._decay[:, 0], _GAP_SMOOTHING, self.frequency, self.gap, self._last_use, before
