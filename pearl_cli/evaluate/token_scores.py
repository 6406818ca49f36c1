"""What one setting did on every scored token, from its logits and routing counts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pearl_cli.evaluate.estimate import Estimate, exp_estimate, mean_estimate


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """float64 [N, V] of float32 logits [N, V]."""
    shifted = logits.astype(np.float64)
    shifted -= shifted.max(axis=-1, keepdims=True)
    result: np.ndarray = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return result


def divergence(base_log: np.ndarray, own_log: np.ndarray) -> np.ndarray:
    """KL(base || own) in nats, float64 [N], of log probabilities [N, V]."""
    result: np.ndarray = (np.exp(base_log) * (base_log - own_log)).sum(axis=-1)
    return result


@dataclass(frozen=True, slots=True)
class TokenScores:
    """Arrays over the N scored tokens: nll float64, negative log likelihood in nats; kld float64 and same_top bool
    against base logits, or None; routes int64 [N, 4] as `RouteCounts.values`, or None where nobody counted; blocks
    int64.
    """

    nll: np.ndarray
    kld: np.ndarray | None
    same_top: np.ndarray | None
    routes: np.ndarray | None
    blocks: np.ndarray

    @classmethod
    def join(cls, parts: list[TokenScores]) -> TokenScores:
        def joined(name: str) -> np.ndarray | None:
            arrays = [getattr(part, name) for part in parts]
            return None if arrays[0] is None else np.concatenate(arrays)

        nll, blocks = joined("nll"), joined("blocks")
        if nll is None or blocks is None:
            raise ValueError("scores without tokens")
        return cls(nll, joined("kld"), joined("same_top"), joined("routes"), blocks)

    def perplexity(self) -> Estimate:
        return exp_estimate(mean_estimate(self.nll, self.blocks))

    def price(self, base: TokenScores) -> Estimate:
        """Relative rise of perplexity over `base` on the same tokens, paired."""
        return exp_estimate(mean_estimate(self.nll - base.nll, self.blocks), minus_one=True)

    def divergence(self) -> Estimate | None:
        return None if self.kld is None else mean_estimate(self.kld, self.blocks)

    def top1_agreement(self) -> Estimate | None:
        return None if self.same_top is None else mean_estimate(self.same_top.astype(np.float64), self.blocks)

    def route_shares(self) -> dict[str, Estimate]:
        """Demand misses, inserts and their sum per routed expert use, and the share of uses that the model's own router
        would choose on the same input; empty where nobody counted.
        """
        if self.routes is None:
            return {}
        uses, demands, inserts, agreed = self.routes.T.astype(np.float64)
        columns = {
            "demand_misses": demands, "inserted": inserts, "copies": demands + inserts, "route_agreement": agreed
        }  # fmt: skip
        return {name: mean_estimate(column / uses, self.blocks) for name, column in columns.items()}
