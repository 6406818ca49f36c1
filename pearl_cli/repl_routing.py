"""`/routing`: show who chooses experts, with what it did so far, or change it between two replies."""

from __future__ import annotations

from pearl_cli.opened_engine import OpenedEngine
from pearl_cli.resolve_routing import resolve_routing
from pearl_cli.routing.cache_prior import CachePriorRouting
from pearl_cli.routing.parse_flags import parse_routing


def show_routing(opened: OpenedEngine) -> str:
    """The setting and, where a logical cache counts, its shares over the decoded tokens so far."""
    policy = opened.policy
    if not isinstance(policy, CachePriorRouting) or not policy.counts.uses:
        return opened.routing.label()
    uses, demands, inserts, agreed = policy.counts.values()
    return (
        f"{opened.routing.label()}\nof {uses} expert uses: demanded at the gate {100 * demands / uses:.1f} %, inserted "
        f"ahead {100 * inserts / uses:.1f} %, as the model alone would choose {100 * agreed / uses:.1f} %"
    )


def change_routing(opened: OpenedEngine, text: str) -> str:
    """Route by the flags in `text` from now on; what to tell the user. Raises UsageError, and nothing has changed."""
    settings = resolve_routing(opened, parse_routing(text, opened.options, "/routing"))
    opened.route_by(settings, opened.routing_for(settings))
    return f"{settings.label()}{'' if settings.exact else '; its cache starts empty'}"
