"""One replay of a trace under one policy and predictor as a flat record, and PEARL's table of ablations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from models.errors import UsageError
from pearl_cli.predict.train_data import RecordedTokens
from pearl_cli.residency.eviction import make_policy
from pearl_cli.residency.uneven_split import Split, split_slots
from pearl_cli.simulate.cost_model import CostModel, Machine
from pearl_cli.simulate.engine_rules import replay_bypass, replay_engine
from pearl_cli.simulate.forecasts import ReplayForecasts
from pearl_cli.simulate.pool import ReplayResult, replay_pool
from pearl_cli.trace import DECODE, RouteTrace

ON_DEMAND = "on-demand"
ENGINE_ONLY = ("pearl", "belady-bypass", ON_DEMAND)


@dataclass(frozen=True, slots=True)
class Setting:
    """How to replay. rules "pool" or "engine"; predictor as `ReplayForecasts` names it; governed: fetch what pays.
    usage: what `static` goes by, else the replayed trace itself; split: of slots over layers, None for evenly.
    """

    machine: Machine
    scope: str = "layer"
    rules: str = "pool"
    predictor: str = "none"
    stride: int = 1
    governed: bool = True
    fetch: bool = True
    seed: int = 0
    usage: RouteTrace | None = None
    split: Split | None = None


def simulate(
    trace: RouteTrace, evict: str, budget_bytes: int, setting: Setting, recorded: RecordedTokens | None = None
) -> dict[str, Any]:
    """One replay. `hit_rate` counts prompt and decoding, `hit_rate_decode` and the cost model decoding alone."""
    forecasts = ReplayForecasts(trace, setting.predictor, setting.stride, recorded, setting.seed)
    next_use = forecasts.next_use() if evict == "pearl" else None
    cost = CostModel(
        setting.machine,
        trace.expert_bytes.tolist(),
        forecasts.fetcher(next_use) if setting.fetch else None,
        trace.num_experts_per_tok,
        setting.governed,
    )
    usage = setting.usage or trace
    if setting.rules == "engine":
        slots = _slots(trace, evict, budget_bytes, setting)
        result = _replay_slots(trace, evict, slots, forecasts, next_use, cost, usage.use_counts())
    elif evict in ENGINE_ONLY or cost.forecaster is not None or setting.split is not None:
        raise UsageError(f"--evict {evict} --predictor {setting.predictor} needs --rules engine")
    else:
        policy = None if evict == "belady" else make_policy(evict, _popularity(usage, setting.scope == "global"))
        result = replay_pool(trace, budget_bytes, policy, setting.scope == "layer", cost)
    return {
        "evict": evict,
        "predictor": "ema" if evict == "pearl" and setting.predictor == "none" else setting.predictor,
        "scope": setting.scope,
        "rules": setting.rules,
        "budget_bytes": budget_bytes,
        "expert_bytes_total": trace.total_expert_bytes,
        **_counts(trace, result),
        **cost.figures(),
    }


def _slots(trace: RouteTrace, evict: str, budget_bytes: int, setting: Setting) -> list[int]:
    """Slots of each layer. Raises UsageError where an uneven split cannot give each layer its least."""
    if evict == ON_DEMAND:
        return [0] * trace.num_layers
    if setting.split is None:
        return [int(budget_bytes / trace.num_layers // n_bytes) for n_bytes in trace.expert_bytes]
    try:
        return split_slots(setting.split, trace.expert_bytes.tolist(), budget_bytes)
    except ValueError as error:
        raise UsageError(f"--split uneven: {error}; give a larger --budget") from error


def _replay_slots(
    trace: RouteTrace, evict: str, slots: list[int], forecasts: ReplayForecasts, next_use: Any, cost: CostModel,
    popularity: np.ndarray,
) -> ReplayResult:  # fmt: skip
    if evict == "belady-bypass":
        return replay_bypass(trace, slots, cost)
    name = "lru" if evict == ON_DEMAND else evict
    policy = None if name == "belady" else make_policy(name, popularity, reload_cost=_costs(trace))
    return replay_engine(trace, slots, policy, next_use, forecasts.router_input, cost)


def _costs(trace: RouteTrace) -> np.ndarray:
    return np.repeat(trace.expert_bytes[:, None], trace.num_experts, axis=1).astype(np.float64)


def _counts(trace: RouteTrace, result: ReplayResult) -> dict[str, Any]:
    decode_tokens = len({(turn, step) for turn, phase, step in trace.rows[:, :3].tolist() if phase == DECODE})
    return {
        "hit_rate": result.hit_rate,
        "hit_rate_decode": result.hit_rate_decode,
        "lookups": result.lookups,
        "lookups_decode": result.lookups_decode,
        "read_bytes": result.read_bytes,
        "read_bytes_decode": result.read_bytes_decode,
        "read_bytes_per_decode_token": result.read_bytes_decode / max(decode_tokens, 1),
    }


def _popularity(trace: RouteTrace, one_pool: bool) -> np.ndarray:
    """For `static`: use counts [L, E], or one row over all experts for a global pool."""
    counts = trace.use_counts()
    return counts.reshape(1, -1) if one_pool else counts


def ablate(
    trace: RouteTrace, budget_bytes: int, setting: Setting, recorded: RecordedTokens | None
) -> list[dict[str, Any]]:
    """PEARL's own table: everything; eviction by recency and fetching without a look at costs; eviction by frequency
    and no fetching; LRU alone.
    """
    from dataclasses import replace

    rows = {
        "full": ("pearl", setting),
        "without controller": ("lru", replace(setting, governed=False)),
        "without predictor": ("pearl", replace(setting, predictor="ema", fetch=False)),
        "lru": ("lru", replace(setting, predictor="none")),
    }
    return [
        {"ablation": name, **simulate(trace, evict, budget_bytes, chosen, recorded)}
        for name, (evict, chosen) in rows.items()
    ]
