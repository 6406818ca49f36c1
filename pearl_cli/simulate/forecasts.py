"""Forecasts for a replay: the same predictors as in the runtime, fed from the trace and, where they read router inputs,
from the file that was recorded with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from kernels.backend import Activations
from models.errors import FileError, UsageError
from models.expert_provider import Routing
from pearl_cli.predict.base import Forecast, NextUse, Predictor
from pearl_cli.predict.choose import make_forecaster
from pearl_cli.predict.ema import EmaNextUse, EmaPredictor
from pearl_cli.predict.horizon import HorizonForecaster
from pearl_cli.predict.horizon_prefetch import HorizonPrefetch
from pearl_cli.predict.mlp import StrideMLP
from pearl_cli.predict.oracle import Oracle, parse_oracle
from pearl_cli.predict.predictor_file import PredictorCard, load_predictor
from pearl_cli.predict.token_table import TokenTable
from pearl_cli.predict.train_data import RecordedTokens
from pearl_cli.trace import Event, RouteTrace


class HostArrays:
    """Stands where a backend is asked for: what was recorded lies in host memory."""

    def to_host(self, array: np.ndarray) -> np.ndarray:
        return array


class ReplayForecasts:
    """What `--predictor NAME` means for one trace. Each replay needs a new one: predictors learn."""

    def __init__(
        self, trace: RouteTrace, name: str, stride: int, recorded: RecordedTokens | None, seed: int = 0
    ) -> None:
        """recorded: the trace with its router inputs, for trained predictors. Raises UsageError, FileError."""
        self.name = name
        self._trace = trace
        self._recorded = recorded
        self._stride = stride
        self._seed = seed
        self._shape = (trace.num_layers, trace.num_experts, trace.num_experts_per_tok)
        self._file = None if name in ("none", "ema", "token-table") or name.startswith("oracle") else self._load(name)
        self._future: _RecordedFuture | None = None
        self._place: dict[tuple[int, int], int] = {}
        if recorded is not None:
            pairs = zip(recorded.turn.tolist(), recorded.step.tolist(), strict=True)
            self._place = {pair: row for row, pair in enumerate(pairs)}
            self._layer = {layer: i for i, layer in enumerate(recorded.layers)}

    def next_use(self) -> NextUse:
        """For pearl eviction: the trained forecast where there is one for a layer's own future, else frequency."""
        if self._file is not None and self._file[0].kind != "mlp":
            return make_forecaster(*self._file)
        return EmaNextUse(*self._shape)

    def router_input(self, event: Event) -> np.ndarray:
        """float32 [1, D] of a token by token event; [1, 0] where nothing was recorded."""
        if self._recorded is None:
            return np.zeros((1, 0), np.float32)
        row = self._place[event.turn, event.step]
        x: np.ndarray = self._recorded.hidden[row, self._layer[event.layer]][None].astype(np.float32)
        return x

    def fetcher(self, next_use: NextUse | None) -> _Fetcher | None:
        """What a cost model asks; next_use: of the same replay, shared where it is a trained one."""
        predictor = self._predictor(next_use)
        return None if predictor is None else _Fetcher(predictor, self)

    def stand_at(self, event: Event) -> None:
        """The replay has come to `event`; matters to the oracle alone."""
        if self._future is not None:
            self._future.stand_at(event)

    def token(self, event: Event) -> int:
        """The token's id, -1 where it was not recorded."""
        if self._recorded is None:
            return -1
        return int(self._recorded.token[self._place[event.turn, event.step]])

    def _load(self, name: str) -> tuple[PredictorCard, dict[str, np.ndarray]]:
        if not Path(name).is_file():
            raise UsageError(
                f"--predictor {name}: no such file; without a model there are ema, oracle:RECALL[:PRECISION], and with "
                "--hidden token-table and files of pearl train"
            )
        if self._recorded is None:
            raise UsageError(f"--predictor {name} reads router inputs: give those recorded with the trace as --hidden")
        card, arrays = load_predictor(Path(name))
        if card.fingerprint != self._recorded.fingerprint:
            raise FileError(f"{name} was trained for another model ({card.model}) than the trace was recorded from")
        return card, arrays

    def _predictor(self, next_use: NextUse | None) -> Predictor | None:
        if self.name == "none":
            return None
        if self._file is not None:
            backend: object = HostArrays()
            if self._file[0].kind == "mlp":
                return StrideMLP(*self._file, backend)  # type: ignore[arg-type]
            shared = isinstance(next_use, HorizonForecaster)
            forecaster = next_use if isinstance(next_use, HorizonForecaster) else make_forecaster(*self._file)
            return HorizonPrefetch(forecaster, backend, self._stride, shared)  # type: ignore[arg-type]
        if self.name.startswith("oracle"):
            layers = sorted(set(self._trace.rows[:, 3].tolist()))
            self._future = _RecordedFuture(self._trace)
            quality = parse_oracle(self.name)
            return Oracle(self._future, layers, self._trace.num_experts, *quality, self._stride, self._seed)
        if self.name == "token-table":
            if self._recorded is None:
                raise UsageError("--predictor token-table needs token ids: give --hidden, recorded with the trace")
            return TokenTable(*self._shape, self._stride)
        return EmaPredictor(*self._shape, self._stride)


class _RecordedFuture:
    """The oracle's view: tokens in order, from the one that the replay stands at."""

    def __init__(self, trace: RouteTrace) -> None:
        self._tokens: list[dict[int, np.ndarray]] = []
        self._index: dict[tuple[int, int], int] = {}
        self.now = 0
        for event in trace.events(token_by_token=True):
            key = (event.turn, event.step)
            if key not in self._index:
                self._index[key] = len(self._tokens)
                self._tokens.append({})
            self._tokens[-1][event.layer] = event.expert_ids

    def stand_at(self, event: Event) -> None:
        self.now = self._index[event.turn, event.step]

    def __call__(self, tokens_ahead: int, layer: int) -> np.ndarray | None:
        index = self.now + tokens_ahead
        return self._tokens[index].get(layer) if index < len(self._tokens) else None


class _Fetcher:
    """Asks a predictor at every event, as the runtime's prefetcher does."""

    def __init__(self, predictor: Predictor, source: ReplayForecasts) -> None:
        self._predictor = predictor
        self._source = source
        self._token: tuple[int, int] = (-1, -1)

    def __call__(self, event: Event) -> Sequence[Forecast]:
        predictor = self._predictor
        self._source.stand_at(event)
        if self._token != (event.turn, event.step):
            self._token = (event.turn, event.step)
            predictor.begin(np.array([self._source.token(event)], np.int64), event.step, "decode")
        x = self._source.router_input(event)
        routing = Routing(event.expert_ids[None].astype(np.int32), np.ones((1, event.expert_ids.size), np.float32))
        return predictor.forecast(event.layer, x, Activations(x), routing)
