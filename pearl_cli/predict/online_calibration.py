"""The sigmoids of a trained forecast, kept true while serving: slope and offset of its logits, one pair a horizon step,
learned from what each event then used. Which experts are likelier than others at one step never changes; how likely
they are does, and with it what a forecast is worth against another layer's, another step's, or a fetch.
"""

from __future__ import annotations

import numpy as np

_FADING = 0.995  # weight of what was learned, an event later: about the last 200 events count
_PRIOR = 10.0  # weight of the trained calibration, as curvature: as much as a few events


class OnlineCalibration:
    """One layer's. scale float64 [K, 2]: slope and offset of each horizon step. Each event is one Newton step on the
    log loss of the forecasts that were made for it, under exponential fading; `kernels.cpu.online_calibration` has it.
    """

    def __init__(self, horizon: int, num_experts: int) -> None:
        self.scale = np.tile([1.0, 0.0], (horizon, 1))
        self._curvature = np.tile([_PRIOR, 0.0, _PRIOR], (horizon, 1))
        self._ring = np.zeros((horizon, horizon, num_experts), np.float32)
        self._used = np.zeros(num_experts)
        self._n_seen = 0

    def recalibrate(self, logits: np.ndarray, topk_ids: np.ndarray) -> None:
        """Events topk_ids [T, n] in order, and the logits float32 [T, K, E] of forecasts made right after each: learn
        from the first, correct the second (in place).
        """
        # Imported here: numba takes half a second to load, and replays without a trained forecast do not come here.
        from kernels.cpu.online_calibration import recalibrate_all

        recalibrate_all(logits, topk_ids.astype(np.int64), *self.begin_events(len(logits)))

    def begin_events(
        self, count: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, int, float, float]:
        """What compiled code needs to learn from the next `count` events, which count as seen from here on: scale,
        curvature, raw logits of the last events, room, events before these, and how fast what was learned fades.
        """
        before = self._n_seen
        self._n_seen += count
        return self.scale, self._curvature, self._ring, self._used, before, _FADING, _PRIOR

    def settle(self, logits: np.ndarray, topk_ids: np.ndarray) -> None:
        """Learn from one event topk_ids [n] that raw `logits` [E] were forecast for. Horizon 1 only."""
        self._ring[0, 0] = logits
        self._n_seen = 1
        self.recalibrate(np.zeros((1, *self._ring.shape[1:]), np.float32), topk_ids[None])

    def corrected(self, logits: np.ndarray) -> np.ndarray:
        """Of one event's raw logits [K, E]."""
        result: np.ndarray = self.scale[:, :1] * logits + self.scale[:, 1:]
        return result
