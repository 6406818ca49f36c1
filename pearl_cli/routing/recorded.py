"""Routing replayed from a trace, whatever the model's own routers say: real locality on weights that have none.

Prompt tokens take the trace's prompt rows, decoded tokens its decode rows, each from the start again when they run out
or a new sequence begins. Experts and layers beyond the model's are refused at the start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kernels.backend import Activations, Array
from models.config import ModelConfig
from models.errors import UsageError
from models.expert_provider import RouterWeights, Routing
from pearl_cli.trace import DECODE, PREFILL, RouteTrace

if TYPE_CHECKING:
    from pearl_cli.routing.base import Inserted
    from pearl_cli.routing.logical_cache import LogicalCache


class RecordedRouting:
    """Shares its place with the oracle predictor through `future`."""

    name = "recorded"
    exact = False
    inserted: Inserted | None = None
    logical: LogicalCache | None = None

    def __init__(self, trace: RouteTrace, config: ModelConfig) -> None:
        """Raises UsageError where the trace is of another shape than the model."""
        layers = sorted(set(trace.rows[:, 3].tolist()))
        router = config.router
        shape = (trace.num_experts, trace.num_layers)
        if shape != (router.num_experts, config.num_layers):
            fault = f"{shape[1]} layers of {shape[0]} experts, the model {config.num_layers} of {router.num_experts}"
            raise UsageError(f"--route-trace: the trace has {fault}; give a trace of a model of that shape")
        self._tokens = {phase: _tokens(trace, phase, layers) for phase in (PREFILL, DECODE)}
        if not self._tokens[DECODE]:
            raise UsageError("--route-trace: the trace holds no decoded token (phase 1); record one with pearl trace")
        self._now: list[dict[int, tuple[np.ndarray, np.ndarray]]] = []
        self._cursor = 0

    @property
    def num_experts_per_tok(self) -> int:
        """Experts a token in the trace, which may be fewer than the model's own."""
        return int(next(iter(self._tokens[DECODE][0].values()))[0].size)

    def begin(self, token_ids: np.ndarray, start: int, phase: str) -> None:
        if phase == "decode":
            tokens = self._tokens[DECODE]
            self._now = [tokens[(self._cursor + i) % len(tokens)] for i in range(len(token_ids))]
            self._cursor += len(token_ids)
            return
        self._cursor = 0
        tokens = self._tokens[PREFILL] or self._tokens[DECODE]
        self._now = [tokens[(start + i) % len(tokens)] for i in range(len(token_ids))]

    def reset(self) -> None:
        self._cursor = 0

    def select(self, router: RouterWeights, residual: Array, a: Activations, router_logits: Array) -> Routing:
        rows = [token[router.layer] for token in self._now]
        return Routing(np.stack([ids for ids, _ in rows]), np.stack([weights for _, weights in rows]))

    def future(self, tokens_ahead: int, layer: int) -> np.ndarray | None:
        """What `layer` will choose for the running decoded token (0) or a later one."""
        tokens = self._tokens[DECODE]
        ids, _ = tokens[(self._cursor - 1 + tokens_ahead) % len(tokens)][layer]
        return ids


def _tokens(
    trace: RouteTrace, phase: int, layers: list[int]
) -> list[dict[int, tuple[np.ndarray, np.ndarray]]]:
    """Per token of `phase`: layer -> (ids int32 [K], weights float32 [K]); a layer that the trace leaves out for a
    token (the last one in a prompt) takes the choice of its first token that has one.
    """
    rows, weights = trace.rows, trace.weights
    order = np.lexsort((rows[:, 4], rows[:, 3], rows[:, 2], rows[:, 0]))
    order = order[rows[order, 1] == phase]
    tokens: dict[tuple[int, int], dict[int, tuple[np.ndarray, np.ndarray]]] = {}
    starts = np.flatnonzero(np.append(True, (np.diff(rows[order][:, (0, 2, 3)], axis=0) != 0).any(axis=1)))
    for part in np.split(order, starts[1:]) if order.size else []:
        turn, _, step, layer = (int(value) for value in rows[part[0], :4])
        given = weights[part]
        if not np.isfinite(given).all():
            given = np.full(part.size, 1.0 / part.size, np.float32)
        tokens.setdefault((turn, step), {})[layer] = (rows[part, 5].astype(np.int32), given.astype(np.float32))
    result = list(tokens.values())
    for layer in layers:
        first = next((token[layer] for token in result if layer in token), None)
        for token in result:
            if layer not in token and first is not None:
                token[layer] = first
    return result
