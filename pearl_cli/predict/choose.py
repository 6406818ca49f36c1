"""From `--predictor`, `--stride` and `--evict` to what forecasts in a run: one object for fetching, one for eviction.

`auto` begins with eviction by the forecast file that lies beside the model (NAME.forecast.gguf), where there is one,
and fetches nothing; whether next-gate fetches, and that file evicts, is found out while running (`residency/auto`). An
untrained predictor named by the flag fetches, and eviction still goes by that file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kernels.backend import Backend
from models.config import ModelConfig
from models.errors import FileError, UsageError
from models.expert_provider import RouterWeights
from models.gguf import GGUFModel
from models.gguf_split import name_of_whole
from pearl_cli.flag_files import file_of
from pearl_cli.predict.base import NextUse, Predictor
from pearl_cli.predict.ema import EmaNextUse, EmaPredictor
from pearl_cli.predict.fingerprint import model_fingerprint
from pearl_cli.predict.horizon import HorizonForecaster
from pearl_cli.predict.horizon_prefetch import HorizonPrefetch
from pearl_cli.predict.mlp import StrideMLP
from pearl_cli.predict.next_gate import NextGate
from pearl_cli.predict.oracle import Future, Oracle, parse_oracle
from pearl_cli.predict.predictor_file import PredictorCard, load_predictor
from pearl_cli.predict.token_table import TokenTable
from pearl_cli.predict.trajectory import TrajectoryForecaster
from pearl_cli.residency.auto.plan import AutoPlan
from pearl_cli.residency.eviction import make_policy

UNTRAINED = ("next-gate", "token-table", "ema")
AUTO = "auto"  # as a piece that can be switched off: then `auto` stays as it begins
UNTRAINED_EVICT = "lfru"  # best causal policy of the replayed traces at most sizes, and never far behind


@dataclass(frozen=True, slots=True)
class Forecasting:
    """What a run asked for, read from its file where there is one. name: what is fetched by, for records; fetch: if
    anything is; evict: the policy, `auto` resolved; card, arrays: a trained forecast, of the predictor or
    (with an untrained one) of eviction alone; auto: what pays is found out while running, `auto_evict` of eviction too.
    """

    name: str
    fetch: bool
    evict: str
    stride: int
    card: PredictorCard | None = None
    arrays: Mapping[str, np.ndarray] | None = None
    auto: bool = False
    auto_evict: bool = False

    def auto_plan(
        self, config: ModelConfig, routers: Sequence[RouterWeights | None], backend: Backend
    ) -> AutoPlan | None:
        """What is found out about while running; None where the user has said what to do."""
        if not self.auto:
            return None
        depth = config.router.num_experts_per_tok
        cheap = make_policy(UNTRAINED_EVICT) if self.auto_evict else None
        return AutoPlan(NextGate(routers, backend, self.stride), depth, depth * (self.stride + 1), cheap)

    def next_use(self, config: ModelConfig) -> NextUse | None:
        """What `pearl` eviction goes by, None for every other policy."""
        if self.evict != "pearl":
            return None
        if self.card is not None and self.arrays is not None and self.card.kind != "mlp":
            return make_forecaster(self.card, self.arrays)
        return EmaNextUse(*_shape(config))

    def check_recorded(self, recorded: bool) -> None:
        """Raises UsageError where a predictor needs recorded routing and there is none."""
        if self.name.startswith("oracle") and not recorded:
            raise UsageError(
                f"--predictor {self.name} knows recorded routing only: give bench a --route-trace, or replay one "
                "with pearl simulate"
            )

    def predictor(
        self,
        config: ModelConfig,
        routers: Sequence[RouterWeights | None],
        backend: Backend,
        next_use: NextUse | None,
        future: Future | None = None,
        seed: int = 0,
    ) -> Predictor | None:
        """What is fetched by; next_use: of this run, which a trained forecaster shares. Raises UsageError."""
        if not self.fetch:
            return None
        shape = _shape(config)
        if self.name.startswith("oracle"):
            self.check_recorded(future is not None)
            assert future is not None
            layers = [router.layer for router in routers if router is not None]
            return Oracle(future, layers, shape[1], *parse_oracle(self.name), self.stride, seed)
        if self.name == "next-gate":
            return NextGate(routers, backend, self.stride)
        if self.name == "token-table":
            return TokenTable(*shape, self.stride)
        if self.card is not None and self.arrays is not None and self.name == self.card.kind:
            if self.card.kind == "mlp":
                return StrideMLP(self.card, self.arrays, backend)
            if isinstance(next_use, HorizonForecaster):
                return HorizonPrefetch(next_use, backend, self.stride, shared=True)
            return HorizonPrefetch(make_forecaster(self.card, self.arrays), backend, self.stride, shared=False)
        return EmaPredictor(*shape, self.stride)


def make_forecaster(
    card: PredictorCard, arrays: Mapping[str, np.ndarray], recalibrates: bool = True
) -> HorizonForecaster:
    """The runtime form of kinds `horizon-mlp` and `trajectory`."""
    return (TrajectoryForecaster if card.kind == "trajectory" else HorizonForecaster)(card, arrays, recalibrates)


def _shape(config: ModelConfig) -> tuple[int, int, int]:
    return config.num_layers, config.router.num_experts, config.router.num_experts_per_tok


def forecast_beside(model: Path) -> Path | None:
    """NAME.forecast.gguf beside NAME.gguf or NAME-00001-of-000NN.gguf, if it is there."""
    path = model.with_name(f"{name_of_whole(model)}.forecast.gguf")
    return path if path.is_file() else None


def choose_forecasting(
    gguf: GGUFModel, predictor: str, stride: int, evict: str, notify: Callable[[str], None] | None = None
) -> Forecasting:
    """Read the flags, and the predictor file if they name one. Raises UsageError, FileError: also for a predictor that
    was trained for another model; one that merely lies beside the model is then passed over with a note.
    """
    if predictor == "none":
        if evict == "pearl":
            raise UsageError("--evict pearl goes by a forecast and --predictor none gives none; leave one of them out")
        return Forecasting("none", False, UNTRAINED_EVICT if evict == "auto" else evict, stride)
    if predictor == "auto":
        return _automatic(gguf, stride, evict, notify)
    check_name(predictor)
    if predictor in UNTRAINED or predictor.startswith("oracle:"):
        beside = _load_beside(gguf, evict, notify)
        if beside is None:
            return Forecasting(predictor, True, UNTRAINED_EVICT if evict == "auto" else evict, stride)
        return Forecasting(predictor, True, "pearl", stride, *beside)
    path = Path(predictor)
    with file_of("--predictor"):
        card, arrays = load_predictor(path)
        _check_model(path, card, gguf)
    if card.stride and stride not in (1, card.stride):
        raise UsageError(
            f"--stride {stride}: {path} forecasts as far ahead as it was trained for, {card.stride}; leave it out"
        )
    chosen = ("pearl" if card.kind != "mlp" else UNTRAINED_EVICT) if evict == "auto" else evict
    return Forecasting(card.kind, True, chosen, card.stride or stride, card, arrays)


def check_name(predictor: str) -> None:
    """Raises UsageError for what is neither a name of a predictor nor a file."""
    if predictor.startswith("oracle:"):
        parse_oracle(predictor)
    elif predictor not in (AUTO, "none", *UNTRAINED) and not Path(predictor).is_file():
        names = ", ".join((AUTO, "none", *UNTRAINED, "oracle:RECALL[:PRECISION]"))
        raise UsageError(f"--predictor {predictor}: no such file, and no name of a predictor; names: {names}")


def _automatic(
    gguf: GGUFModel, stride: int, evict: str, notify: Callable[[str], None] | None
) -> Forecasting:
    beside = _load_beside(gguf, evict, notify)
    if beside is not None:
        return Forecasting(beside[0].kind, False, "pearl", stride, *beside, auto=True, auto_evict=evict == "auto")
    name = "ema" if evict == "pearl" else "none"
    return Forecasting(name, False, UNTRAINED_EVICT if evict == "auto" else evict, stride, auto=True)


def _load_beside(
    gguf: GGUFModel, evict: str, notify: Callable[[str], None] | None
) -> tuple[PredictorCard, Mapping[str, np.ndarray]] | None:
    """The forecast that lies beside the model, where eviction may go by one; None for one of another model, said."""
    path = forecast_beside(gguf.paths[0]) if evict in ("auto", "pearl") else None
    if path is None:
        return None
    card, arrays = load_predictor(path)
    try:
        _check_model(path, card, gguf)
    except FileError as error:
        if notify is not None:
            notify(f"{error}; running without it")
        return None
    return card, arrays


def _check_model(path: Path, card: PredictorCard, gguf: GGUFModel) -> None:
    if card.fingerprint != model_fingerprint(gguf):
        fault = f"{path} was trained for another model ({card.model}) than {gguf.paths[0].name}"
        raise FileError(f"{fault}: train one for it")
