"""Evaluation results as JSON or as a table for a person. Numbers only; nothing is measured here."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from pearl_cli.evaluate.estimate import Estimate
from pearl_cli.evaluate.token_scores import TokenScores
from pearl_cli.routing.settings import RoutingSettings


@dataclass(frozen=True, slots=True)
class Result:
    """One setting. price: relative rise of perplexity over the first setting, None for that one itself."""

    settings: RoutingSettings
    evict: str
    scores: TokenScores
    price: Estimate | None

    def record(self) -> dict[str, Any]:
        """For JSON: each figure with value, standard_error, low and high of its 95 % interval."""
        figures: dict[str, Estimate | None] = {
            "perplexity": self.scores.perplexity(),
            "perplexity_price": self.price,
            "kl_divergence": self.scores.divergence(),
            "top1_agreement": self.scores.top1_agreement(),
            **self.scores.route_shares(),
        }
        settings = self.settings
        return {
            "routing": settings.name,
            "lambda": settings.lambda_,
            "top_j": None if settings.exact else settings.top_j,
            "inserts": settings.inserts,
            "steer": settings.steering.label(),
            "residency": settings.residency,
            "logical_evict": self.evict or None,
            "deterministic": settings.deterministic,
            **{name: figure.record() for name, figure in figures.items() if figure is not None},
        }


def result_table(results: list[Result], n_windows: int, context: int, scored: str) -> str:
    """Lines for a terminal: one block a setting."""
    n_tokens = results[0].scores.nll.size
    where = "the second half of each" if scored == "half" else "all of each but its first token"
    lines = [f"{n_tokens} tokens scored in {n_windows} windows of {context}, {where}; ± is one standard error"]
    for result in results:
        evict = f", logical cache evicts by {result.evict}" if result.evict else ""
        lines.append(f"{result.settings.label()}{evict}")
        lines.append(f"  perplexity         {_plus_minus(result.scores.perplexity(), 4)}")
        if result.price is not None:
            lines.append(f"  price              {_percent(result.price, sign=True)} of perplexity, paired")
        divergence, top1 = result.scores.divergence(), result.scores.top1_agreement()
        if divergence is not None and top1 is not None:
            lines.append(f"  KL divergence      {_plus_minus(divergence, 5)}")
            lines.append(f"  same top token     {_percent(top1)}")
        names = {"demand_misses": "demand misses", "inserted": "inserts", "copies": "copies in all",
                 "route_agreement": "route agreement"}  # fmt: skip
        for name, share in result.scores.route_shares().items():
            lines.append(f"  {names[name]:<18} {_percent(share)} of expert uses")
    return "\n".join(lines)


def _plus_minus(estimate: Estimate, digits: int) -> str:
    error = "" if math.isnan(estimate.standard_error) else f" ± {estimate.standard_error:.{digits}f}"
    return f"{estimate.value:.{digits}f}{error}"


def _percent(estimate: Estimate, sign: bool = False) -> str:
    value = f"{100 * estimate.value:{'+' if sign else ''}.2f} %"
    if math.isnan(estimate.standard_error):
        return value
    if sign:
        return f"{value} (95 % interval {100 * estimate.low:+.2f} to {100 * estimate.high:+.2f})"
    return f"{value} ± {100 * estimate.standard_error:.2f}"
