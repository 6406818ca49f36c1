"""What the flags of a run ask and this model cannot give, as far as it is known before a weight is read.

`open_engine` asks before it loads, and `pearl plan`, which loads nothing, asks the same. What needs the running engine
is refused where it is found.
"""

from __future__ import annotations

from models.gguf import GGUFModel
from pearl_cli.groundwork import Groundwork
from pearl_cli.options import RunOptions
from pearl_cli.resolve_routing import check_automatic
from pearl_cli.routing.check_counts import check_counts
from pearl_cli.routing.settings import RoutingSettings
from pearl_cli.run_policies import chosen_eviction
from pearl_cli.start_profile import StartProfile


def check_run(
    ground: Groundwork, gguf: GGUFModel, options: RunOptions, settings: RoutingSettings, profile: StartProfile
) -> None:
    """Raises UsageError, and FileError for a file of factors, in the words of the room whose affair it is."""
    router = ground.config.router
    chosen_eviction(ground, options, profile.pinned)
    ground.forecasting.check_recorded(options.route_trace is not None)
    if not settings.exact:
        check_counts(settings, router.num_experts, router.num_experts_per_tok)
        check_automatic(settings, gguf, options, ground.plan.all_resident)
