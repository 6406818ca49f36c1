"""The byte plan of a run on the CPU, from its flags and from the process and the machine as they stand now.

The arithmetic is `memory_plan`'s; a GPU's memory is planned by `device.open_device`.
"""

from __future__ import annotations

from models.config import ModelConfig
from models.errors import MemoryPlanError
from models.gguf import GGUFModel
from models.kv_cache import KVCache
from models.loader import non_expert_bytes
from pearl_cli.host_memory import available_bytes, peak_rss_bytes, rss_bytes
from pearl_cli.memory_plan import DEFAULT_SHARE, FixedNeeds, MemoryPlan, choose_context, plan_memory
from pearl_cli.open_model import wanted_by
from pearl_cli.options import RunOptions
from pearl_cli.residency.build import ExpertPlaces
from pearl_cli.residency.uneven_split import Split
from pearl_cli.sizes import Size
from pearl_cli.what_fits import what_fits
from pearl_cli.workspace import workspace_bytes


def plan_run(
    gguf: GGUFModel,
    config: ModelConfig,
    places: ExpertPlaces,
    options: RunOptions,
    default_budget: Size | None = None,
    prefetch_slots: int = 0,
    threads: int = 1,
    split: Split | None = None,
) -> MemoryPlan:
    """prefetch_slots: for forecasts. A store in host memory that was given no budget is computed in place.

    Raises MemoryPlanError, which says what would fit, and UsageError.
    """
    machine = rss_bytes() + int(DEFAULT_SHARE * available_bytes()) if options.ram is None else 0

    def plan(asked: RunOptions) -> MemoryPlan:
        budget = default_budget if asked.budget is None and asked.ram is None else asked.budget
        return plan_memory(
            fixed_needs(gguf, config, asked, threads), places.slot_bytes, config.router.num_experts,
            asked.ram.n_bytes if asked.ram else machine, budget, ceiling_is_asked=asked.ram is not None,
            prefetch_slots=prefetch_slots, in_place=gguf.memory is not None and budget is None, split=split,
        )  # fmt: skip

    try:
        return plan(options)
    except MemoryPlanError as error:
        context = choose_context(options.ctx_size, config.context_length)
        raise MemoryPlanError(f"{error}{what_fits(plan, options, context)}") from error


def fixed_needs(gguf: GGUFModel, config: ModelConfig, options: RunOptions, threads: int) -> FixedNeeds:
    """What this process takes before the first expert. Raises UsageError for a context beyond the trained one."""
    context, store = choose_context(options.ctx_size, config.context_length), gguf.memory
    return FixedNeeds(
        process_bytes=rss_bytes(),
        weight_bytes=non_expert_bytes(gguf, config) + (store.missing_bytes(wanted_by(config)) if store else 0),
        kv_bytes=KVCache.planned_bytes(config, context, options.cache_type_k, options.cache_type_v),
        workspace_bytes=workspace_bytes(config, min(options.ubatch_size, context)),
        context=context,
        peak_bytes=peak_rss_bytes(),
        filling_bytes=store.filling_bytes(threads) if store else 0,
    )
