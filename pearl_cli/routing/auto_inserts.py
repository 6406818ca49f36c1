"""`--inserts auto`: how many experts can be copied while one layer computes, from speeds measured once at the start.

n experts are hidden where n * expert_bytes <= link_bytes_per_s * layer_s. Measured before the first token and fixed
from then on, so that routing stays a function of tokens, weights and this one number, which is recorded.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LinkSpeed:
    """read_bytes_per_s of experts from the next tier; layer_s: computing one decoded token in one layer with experts,
    waits for copies left out; expert_bytes: of the largest expert.
    """

    read_bytes_per_s: float
    layer_s: float
    expert_bytes: int

    def hidden_inserts(self, num_experts_per_tok: int) -> int:
        """0 .. num_experts_per_tok: more than a token uses cannot all be right."""
        copied = self.read_bytes_per_s * self.layer_s / self.expert_bytes
        return max(0, min(num_experts_per_tok, int(copied)))

    def label(self) -> str:
        """For a person."""
        return (
            f"reads {self.read_bytes_per_s / 1e9:.2f} GB/s, a layer computes {1e3 * self.layer_s:.2f} ms, "
            f"an expert has {self.expert_bytes / 2**20:.2f} MiB"
        )
