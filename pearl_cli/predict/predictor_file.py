"""A trained predictor as a small GGUF: its card as metadata, its matrices as F16 tensors. Never holds code."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from models.errors import FileError
from models.gguf import GGUFModel
from pearl_cli.predict.reuse_history import NUM_FEATURES
from pearl_cli.result_file import result_file

ARCHITECTURE = "pearl-predictor"
KINDS = ("horizon-mlp", "trajectory", "mlp")
FORMAT_VERSION = 1
_PREFIX = "pearl.predictor."


@dataclass(frozen=True, slots=True)
class PredictorCard:
    """What the file says about itself. layers: the model's layers with experts; recall[k-1]: share of used experts
    among the num_experts_per_tok likeliest, k events ahead, on held-out text; ece: over all horizons.
    """

    kind: str
    fingerprint: str
    model: str
    layers: tuple[int, ...]
    num_experts: int
    num_experts_per_tok: int
    hidden_size: int
    width: int
    horizon: int
    stride: int
    training_tokens: int
    held_out_tokens: int
    recall: tuple[float, ...]
    ece: float

    def lines(self) -> list[str]:
        """The card for people."""
        name = "layers ahead" if self.kind == "mlp" else "events ahead"
        ahead = [self.stride] if self.kind == "mlp" else list(range(1, self.horizon + 1))
        recalls = ", ".join(f"{k}: {value:.3f}" for k, value in zip(ahead, self.recall, strict=True))
        return [
            f"predictor {self.kind} for {self.model} (routers {self.fingerprint[:12]})",
            f"{len(self.layers)} layers, {self.num_experts_per_tok} of {self.num_experts} experts, width {self.width}",
            f"trained on {self.training_tokens} tokens, judged on {self.held_out_tokens} held-out ones",
            f"recall of {self.num_experts_per_tok} fetched, by {name}: {recalls}",
            f"expected calibration error {self.ece:.4f}",
        ]


def save_predictor(path: Path, card: PredictorCard, tensors: dict[str, np.ndarray]) -> None:
    """Matrices are stored as F16, vectors as F32. Raises WriteFailure, which names -o."""
    with result_file(path, "-o") as place:
        _write(place, card, tensors)


def _write(path: Path, card: PredictorCard, tensors: dict[str, np.ndarray]) -> None:
    import gguf

    writer = gguf.GGUFWriter(path, ARCHITECTURE)
    writer.add_type(ARCHITECTURE)
    writer.add_uint32(f"{_PREFIX}format_version", FORMAT_VERSION)
    for name in ("kind", "fingerprint", "model"):
        writer.add_string(_PREFIX + name, getattr(card, name))
    for name in _COUNTS:
        writer.add_uint32(_PREFIX + name, getattr(card, name))
    writer.add_array(f"{_PREFIX}layers", list(card.layers))
    writer.add_array(f"{_PREFIX}recall", [float(value) for value in card.recall])
    writer.add_float32(f"{_PREFIX}ece", card.ece)
    for name, array in tensors.items():
        writer.add_tensor(name, np.ascontiguousarray(array, _stored_type(array)))
    try:
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
    finally:
        writer.close()


def as_stored(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """float32 copies with the rounding that storing does."""
    return {name: np.ascontiguousarray(a, _stored_type(a)).astype(np.float32) for name, a in tensors.items()}


def _stored_type(array: np.ndarray) -> type[np.floating[Any]]:
    return np.float16 if array.ndim > 1 else np.float32


_COUNTS = (
    "num_experts", "num_experts_per_tok", "hidden_size", "width", "horizon", "stride", "training_tokens",
    "held_out_tokens",
)  # fmt: skip


def load_predictor(path: Path) -> tuple[PredictorCard, dict[str, np.ndarray]]:
    """(card, float32 arrays by name). Raises FileError where the file is no predictor of a known kind."""
    with GGUFModel.open(path) as file:
        metadata = file.metadata
        if metadata.get("general.architecture") != ARCHITECTURE:
            raise FileError(f"{path}: a model ({metadata.get('general.architecture')}), not a predictor of pearl train")
        version = _value(path, metadata, "format_version", int)
        if version != FORMAT_VERSION:
            raise FileError(f"{path}: predictor format {version}; this pearl reads {FORMAT_VERSION}: train it again")
        kind = _value(path, metadata, "kind", str)
        if kind not in KINDS:
            raise FileError(f"{path}: predictor kind '{kind}' is unknown; supported: {', '.join(KINDS)}")
        layers = tuple(int(layer) for layer in _value(path, metadata, "layers", np.ndarray))
        recall = tuple(float(share) for share in _value(path, metadata, "recall", np.ndarray))
        card = PredictorCard(
            kind=kind,
            fingerprint=_value(path, metadata, "fingerprint", str),
            model=_value(path, metadata, "model", str),
            layers=layers,
            recall=recall,
            ece=_value(path, metadata, "ece", float),
            **{name: _value(path, metadata, name, int) for name in _COUNTS},
        )
        arrays = {name: file.array(name) for name in file.tensors}
    _check_shapes(path, card, arrays)
    return card, arrays


def _value(path: Path, metadata: dict[str, Any], name: str, kind: type) -> Any:
    value = metadata.get(_PREFIX + name)
    if not isinstance(value, kind):
        raise FileError(f"{path}: metadata {_PREFIX}{name} is {'missing' if value is None else 'of another type'}")
    return value


def tensor_shapes(card: PredictorCard) -> dict[str, tuple[int, ...]]:
    """Every tensor of a file with this card and its numpy shape; `c` weighs the features of the reuse history."""
    shapes: dict[str, tuple[int, ...]] = {}
    width, out = card.width, card.horizon * card.num_experts
    for layer in card.layers:
        own: dict[str, tuple[int, ...]] = {"w1": (card.hidden_size, width), "w2": (width, out), "b2": (out,)}
        if card.kind == "trajectory":
            for i in range(2):
                own |= {f"gru{i}.w_in": (width, 3 * width), f"gru{i}.w_state": (width, 3 * width)}
                own |= {f"gru{i}.b_in": (3 * width,), f"gru{i}.b_state": (3 * width,)}
        else:
            own["b1"] = (width,)
        if card.kind != "mlp":
            own["c"] = (card.horizon, NUM_FEATURES)
        shapes |= {f"blk.{layer}.{name}": shape for name, shape in own.items()}
    return shapes


def _check_shapes(path: Path, card: PredictorCard, arrays: dict[str, np.ndarray]) -> None:
    for name, shape in tensor_shapes(card).items():
        found = arrays.get(name)
        if found is None or found.shape != shape:
            state = "missing" if found is None else f"of shape {list(found.shape)}, not {list(shape)}"
            raise FileError(f"{path}: tensor '{name}' is {state}")
