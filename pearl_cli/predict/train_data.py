"""A recorded trace with its router inputs as arrays to learn from: inputs, history features, labels, and the split by
turn. Numpy only.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from models.errors import FileError, UsageError
from pearl_cli.npz_file import read_npz
from pearl_cli.predict.reuse_history import ReuseHistory
from pearl_cli.trace import RouteTrace, read_trace

_HELD_OUT_SHARE = 0.1
_INDEX = ("turn", "step", "token")


@dataclass(frozen=True, slots=True)
class RecordedTokens:
    """N tokens in order of computation. hidden float16 [N, L, D]; topk_ids int64 [N, L, K]; turn, step, token int32
    [N]; layers: the L layers with experts; fingerprint: of the model that was recorded.
    """

    trace: RouteTrace
    hidden: np.ndarray
    topk_ids: np.ndarray
    turn: np.ndarray
    step: np.ndarray
    token: np.ndarray
    layers: list[int]
    fingerprint: str

    def part(self, rows: np.ndarray) -> RecordedTokens:
        """The tokens of `rows` (bool [N])."""
        kept = self.trace.rows[np.isin(self.trace.rows[:, 0], np.unique(self.turn[rows]))]
        trace = RouteTrace(
            self.trace.model, self.trace.arch, self.trace.num_layers, self.trace.num_experts,
            self.trace.num_experts_per_tok, self.trace.expert_bytes, kept, np.ones(len(kept), np.float32),
        )  # fmt: skip
        return RecordedTokens(
            trace, self.hidden[rows], self.topk_ids[rows], self.turn[rows], self.step[rows], self.token[rows],
            self.layers, self.fingerprint,
        )  # fmt: skip


def load_recorded(trace_path: Path, hidden_path: Path) -> RecordedTokens:
    """Read both files of `pearl trace`. Raises FileError where one is damaged or they do not belong together."""
    trace = read_trace(trace_path)
    arrays = _read_hidden(hidden_path)
    hidden, layers = arrays["hidden"], [int(layer) for layer in arrays["layers"]]
    n, k = len(hidden), trace.num_experts_per_tok
    rows = trace.rows[np.lexsort(tuple(trace.rows[:, i] for i in (4, 3, 2, 0)))]
    belongs = len(rows) == n * len(layers) * k
    if belongs:
        grid = rows.reshape(n, len(layers), k, 6)
        keys = grid[:, 0, 0]
        belongs = (
            np.array_equal(keys[:, 0], arrays["turn"])
            and np.array_equal(keys[:, 2], arrays["step"])
            and bool((grid[..., 3] == np.array(layers)[None, :, None]).all())
        )
    if not belongs:
        raise FileError(f"{hidden_path} does not belong to {trace_path}: tokens or layers differ; record both together")
    return RecordedTokens(
        trace, hidden, grid[..., 5], arrays["turn"], arrays["step"], arrays["token"], layers, str(arrays["fingerprint"])
    )


def _read_hidden(path: Path) -> dict[str, np.ndarray]:
    try:
        arrays = read_npz(path, [*_INDEX, "hidden", "layers", "fingerprint"])
    except OSError as error:
        raise FileError(f"--hidden {path}: {error.strerror}") from error
    except ValueError:
        raise FileError(
            f"--hidden {path}: damaged, or no router inputs of pearl trace --hidden; record trace and inputs anew"
        ) from None
    shape = arrays["hidden"].shape
    columns = all(arrays[name].shape == shape[:1] and arrays[name].dtype.kind == "i" for name in _INDEX)
    layers = arrays["layers"]
    if len(shape) != 3 or not columns or layers.shape != shape[1:2] or layers.dtype.kind != "i":
        raise FileError(f"--hidden {path}: not arrays as pearl trace writes them; record trace and inputs anew")
    return arrays


def split_by_turn(recorded: RecordedTokens) -> tuple[RecordedTokens, RecordedTokens]:
    """(training, held-out): every tenth turn is held out, so that no text is on both sides. Raises UsageError."""
    turns = np.unique(recorded.turn)
    if len(turns) < 4:
        raise UsageError(
            f"the trace holds {len(turns)} texts; at least 4 are needed to hold some out: record more (pearl trace -f)"
        )
    step = max(2, round(min(1 / _HELD_OUT_SHARE, len(turns) / 2)))
    held_out = np.isin(recorded.turn, turns[step - 1 :: step])
    return recorded.part(~held_out), recorded.part(held_out)


def used(topk_ids: np.ndarray, num_experts: int) -> np.ndarray:
    """bool [N, E] of topk_ids [N, K]."""
    result = np.zeros((len(topk_ids), num_experts), bool)
    np.put_along_axis(result, topk_ids, True, axis=1)
    return result


def horizon_labels(topk_ids: np.ndarray, turn: np.ndarray, num_experts: int, horizon: int) -> np.ndarray:
    """For one layer: float32 [N, horizon, E], 1 where the expert is used k = 1..horizon events later; NaN in rows of
    which the turn ends earlier.
    """
    now = used(topk_ids, num_experts)
    labels = np.full((len(now), horizon, num_experts), np.nan, np.float32)
    for k in range(1, horizon + 1):
        same = np.zeros(len(now), bool)
        same[:-k] = turn[k:] == turn[:-k]
        labels[same, k - 1] = now[k:][same[:-k]]
    return labels


def stride_labels(recorded: RecordedTokens, index: int, stride: int) -> np.ndarray:
    """float32 [N, 1, E]: what the layer `stride` layers after the `index`-th chooses, on the next token where that
    wraps around; NaN where there is no next token.
    """
    wraps, target = divmod(index + stride, len(recorded.layers))
    if wraps:
        return horizon_labels(recorded.topk_ids[:, target], recorded.turn, recorded.trace.num_experts, wraps)[:, -1:]
    return used(recorded.topk_ids[:, target], recorded.trace.num_experts).astype(np.float32)[:, None]


def history_features(topk_ids: np.ndarray, num_experts: int) -> np.ndarray:
    """For one layer: float32 [N, NUM_FEATURES, E] right after each event, as the runtime will see them."""
    return ReuseHistory(num_experts, topk_ids.shape[1]).record_all(topk_ids)[0]
