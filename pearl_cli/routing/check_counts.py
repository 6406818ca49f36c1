"""Counts of experts in routing settings against the model that they are for: more than there can be is refused."""

from __future__ import annotations

from models.errors import UsageError
from pearl_cli.routing.settings import RoutingSettings


def check_counts(settings: RoutingSettings, num_experts: int, num_experts_per_tok: int) -> None:
    """Raises UsageError for a number that no token of this model could make use of."""
    top_m, used = settings.steering.top_m, num_experts_per_tok
    if top_m is not None and top_m > num_experts:
        raise UsageError(f"--steer top-m={top_m}: a layer of this model has {num_experts} experts; give at most that")
    if settings.top_j > used:
        raise UsageError(f"--top-j {settings.top_j}: a token of this model uses {used} experts; give 0 to {used}")
    looked_at = used if top_m is None else top_m
    if settings.inserts is not None and settings.inserts > looked_at:
        whose = f"as many as a token uses; for more, --steer top-m={min(settings.inserts, num_experts)}"
        reason = whose if top_m is None else f"says --steer top-m={top_m}"
        raise UsageError(
            f"--inserts {settings.inserts}: only the best {looked_at} of the next router are looked at, {reason}; "
            f"give 0 to {looked_at}"
        )
