"""`--miss`: which experts that the GPU lacks are computed on the CPU, by what both were measured to cost.

Copies and the CPU work side by side, so the rule makes the longer of the two as short as it can (Fiddler, arXiv
2402.07033, states that goal; its code sums instead). It sees token counts and constants only, never a clock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pearl_cli.device.fastest import fastest


@dataclass(frozen=True, slots=True)
class MissRule:
    """Seconds: copy_s to copy one expert; computing it on the CPU takes cpu_s, and cpu_token_s for each token beyond
    the first. always: all misses go to the CPU.
    """

    copy_s: float
    cpu_s: float
    cpu_token_s: float
    always: bool = False

    def on_cpu(self, n_tokens: Sequence[int]) -> list[int]:
        """Indices of the missing experts to compute on the CPU; n_tokens: of each. Fewest tokens first."""
        order = sorted(range(len(n_tokens)), key=lambda i: (n_tokens[i], i))
        if self.always:
            return order
        costs = [self.cpu_s + self.cpu_token_s * (n_tokens[i] - 1) for i in order]
        longest = [max(sum(costs[:q]), (len(order) - q) * self.copy_s) for q in range(len(order) + 1)]
        return order[: longest.index(min(longest))]


def measure(copy: Callable[[], None], compute: Callable[[int], None], many: int, always: bool) -> MissRule:
    """The rule by the fastest of a few runs each. copy: one expert, until it has come; compute(n): one expert for n
    tokens on the CPU.
    """
    one, most = fastest(lambda: compute(1)), fastest(lambda: compute(many))
    return MissRule(fastest(copy), one, max(0.0, (most - one) / (many - 1)), always)
