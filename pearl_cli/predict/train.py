"""Fit a predictor to recorded tokens with torch on the CPU: batches, optimiser, progress. What a file of it holds and
how it is judged is in `predictor_file.py` and `judge.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from pearl_cli.predict.train_data import RecordedTokens, history_features, horizon_labels, stride_labels
from pearl_cli.predict.train_loss import horizon_loss
from pearl_cli.predict.train_networks import GRU_LAYERS, PerLayerMLP, Trajectory

_BATCH_TOKENS = 512
_WINDOW = 64  # decode steps a GRU is unrolled over
_LEARNING_RATE = 3e-3
_WEIGHT_DECAY = 1e-4

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class TrainOptions:
    """kind as in `predictor_file.KINDS`; width: of the hidden layer; epochs: passes over the tokens."""

    kind: str
    width: int
    horizon: int
    stride: int
    epochs: int
    seed: int


@dataclass(slots=True)
class _Arrays:
    """hidden float16 [N, L, D], features float16 [N, L, F, E], labels int8 [N, L, K, E] with -1 for none."""

    hidden: Tensor
    features: Tensor
    labels: Tensor

    def batch(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        labels = self.labels[rows].float()
        return self.hidden[rows].float(), self.features[rows].float(), torch.where(labels < 0, torch.nan, labels)


def train(recorded: RecordedTokens, options: TrainOptions, progress: Progress | None = None) -> dict[str, np.ndarray]:
    """Tensors by name, as `save_predictor` takes them. progress(done, total) counts optimiser steps."""
    torch.manual_seed(options.seed)
    arrays = _prepare(recorded, options)
    horizon = arrays.labels.shape[2]
    shape = (len(recorded.layers), recorded.hidden.shape[2], options.width, horizon, recorded.trace.num_experts)
    features = arrays.features.shape[2]
    net: nn.Module = (Trajectory if options.kind == "trajectory" else PerLayerMLP)(*shape, features)
    batches = _windows(recorded, options) if options.kind == "trajectory" else _shuffled(recorded, options)
    _fit(net, arrays, list(batches), progress)
    with torch.no_grad():
        return _export(net, recorded.layers, options.kind)


def _prepare(recorded: RecordedTokens, options: TrainOptions) -> _Arrays:
    experts = recorded.trace.num_experts
    labels, features = [], []
    for index in range(len(recorded.layers)):
        ids = recorded.topk_ids[:, index]
        if options.kind == "mlp":
            wanted = stride_labels(recorded, index, options.stride)
            features.append(np.zeros((len(ids), 0, experts), np.float16))
        else:
            wanted = horizon_labels(ids, recorded.turn, experts, options.horizon)
            features.append(history_features(ids, experts).astype(np.float16))
        labels.append(np.nan_to_num(wanted, nan=-1.0).astype(np.int8))
    return _Arrays(
        torch.from_numpy(np.ascontiguousarray(recorded.hidden)),
        torch.from_numpy(np.stack(features, axis=1)),
        torch.from_numpy(np.stack(labels, axis=1)),
    )


def _shuffled(recorded: RecordedTokens, options: TrainOptions) -> Iterator[Tensor]:
    """Rows of each step: tokens in random order."""
    rng, n = np.random.default_rng(options.seed), len(recorded.hidden)
    for _ in range(options.epochs):
        order = torch.from_numpy(rng.permutation(n))
        yield from order.split(_batch_tokens(n))


def _windows(recorded: RecordedTokens, options: TrainOptions) -> Iterator[Tensor]:
    """Rows [B, T] of each step: runs of tokens in order, from another offset every epoch. A run may go on into the next
    turn, as a conversation does; no label reaches across.
    """
    rng = np.random.default_rng(options.seed)
    n = len(recorded.hidden)
    for _ in range(options.epochs):
        window = min(_WINDOW, n)
        starts = rng.permutation(np.arange(rng.integers(min(window, n - window + 1)), n - window + 1, window))
        rows = torch.from_numpy(starts[:, None] + np.arange(window))
        yield from rows.split(max(1, _batch_tokens(n) // window))


def _batch_tokens(n: int) -> int:
    """Fewer for a short trace, so that an epoch has some steps."""
    return max(32, min(_BATCH_TOKENS, n // 16))


def _fit(net: nn.Module, arrays: _Arrays, batches: list[Tensor], progress: Progress | None) -> None:
    optimiser = torch.optim.AdamW(net.parameters(), lr=_LEARNING_RATE, weight_decay=_WEIGHT_DECAY)
    total = len(batches)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda i: 0.5 + 0.5 * math.cos(math.pi * i / total))
    for step, rows in enumerate(batches, 1):
        x, features, labels = arrays.batch(rows)
        loss = horizon_loss(net(x, features), labels)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        if progress is not None:
            progress(step, total)


def _export(net: nn.Module, layers: list[int], kind: str) -> dict[str, np.ndarray]:
    tensors: dict[str, np.ndarray] = {}
    for i, layer in enumerate(layers):
        blk = f"blk.{layer}."
        tensors |= {blk + "w2": net.head.w2[i].numpy(), blk + "b2": net.head.b2[i].numpy()}
        if kind != "mlp":
            tensors[blk + "c"] = net.head.c[i].numpy()
        if kind != "trajectory":
            tensors |= {blk + "w1": net.w1[i].numpy(), blk + "b1": net.b1[i].numpy()}
            continue
        tensors[blk + "w1"] = net.proj[i].numpy()
        gru = net.gru[i]
        for n in range(GRU_LAYERS):
            own = f"{blk}gru{n}."
            tensors |= {own + "w_in": getattr(gru, f"weight_ih_l{n}").T.numpy()}
            tensors |= {own + "w_state": getattr(gru, f"weight_hh_l{n}").T.numpy()}
            tensors |= {own + "b_in": getattr(gru, f"bias_ih_l{n}").numpy()}
            tensors |= {own + "b_state": getattr(gru, f"bias_hh_l{n}").numpy()}
    return tensors
