"""Run texts through a model and write what its routers chose: the work behind `pearl trace`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TextIO

import numpy as np

from models.errors import ContextError, UsageError
from pearl_cli.engine import Engine
from pearl_cli.predict.fingerprint import model_fingerprint
from pearl_cli.recording import CallRecord, RecordingProvider
from pearl_cli.result_file import result_file
from pearl_cli.sampling import Sampler, SamplingParams
from pearl_cli.session import Session
from pearl_cli.terminal import Progress, Terminal
from pearl_cli.trace import DECODE, PREFILL, TraceWriter


def check_lengths(prompts: Iterable[tuple[str, Sequence[int]]], engine: Engine, n_predict: int) -> None:
    """Raises UsageError where there is nothing to record, and with `n_predict` ContextError for a text that does not
    fit the context: before the first is run. prompts: (where it comes from, its ids).
    """
    lengths = [(where, len(ids)) for where, ids in prompts]
    if not any(length for _, length in lengths):
        raise UsageError("-f: there is no text to record; give some")
    for where, length in lengths:
        if n_predict and length > engine.context:
            raise ContextError(
                f"-f {where}: its {length} tokens do not fit the context of {engine.context}; shorten it, or give a "
                "larger -c, or leave out -n, which cuts texts"
            )


class TraceRun:
    """One trace file. Router inputs are held in memory until `save_hidden`: 2 bytes x hidden width x layers a token."""

    def __init__(self, session: Session, terminal: Terminal, keep_hidden: bool, max_tokens: int | None = None) -> None:
        self._session = session
        self._terminal = terminal
        self._left = max_tokens if max_tokens is not None else -1
        self._engine = session.engine
        self._recorder = RecordingProvider(session.opened.controller, session.opened.backend, keep_hidden)
        self._keep_hidden = keep_hidden
        self._hidden: list[np.ndarray] = []
        self._index: list[np.ndarray] = []  # int32 [T, 3]: turn, step, token

    def write(self, path: Path, prompts: Sequence[Sequence[int]], n_predict: int) -> int:
        """Write the trace of `prompts`, `n_predict` greedy tokens after each, for -o; returns the number of tokens
        recorded. Raises WriteFailure.
        """
        progress = Progress(self._terminal, "recording")
        pieces = [piece for prompt in prompts for piece in self._pieces(prompt, n_predict)]
        total, done = sum(map(len, pieces)), 0
        provider, self._engine.provider = self._engine.provider, self._recorder
        n_tokens = 0
        try:
            with result_file(path, "-o") as place, place.open("w", encoding="utf-8") as out:
                writer = self._writer(out)
                for turn, piece in enumerate(pieces):
                    if self._left == 0:
                        break
                    n_tokens += self._run(writer, turn, piece, n_predict)
                    done += len(piece)
                    progress(done, total)
        finally:
            self._engine.provider = provider
            self._terminal.end_progress()
        return n_tokens

    def save_hidden(self, path: Path) -> None:
        """hidden float16 [N, L, D], turn, step, token int32 [N], layers int32 [L] (those with experts), fingerprint.
        Raises WriteFailure.
        """
        index = np.concatenate(self._index)
        layers = [router.layer for router in self._engine.model.routers if router is not None]
        with result_file(path, "--hidden") as place, place.open("wb") as out:
            np.savez(
                out, hidden=np.concatenate(self._hidden), turn=index[:, 0], step=index[:, 1], token=index[:, 2],
                layers=np.array(layers, np.int32), fingerprint=np.array(model_fingerprint(self._session.opened.gguf)),
            )  # fmt: skip

    def _pieces(self, ids: Sequence[int], n_predict: int) -> list[Sequence[int]]:
        if n_predict:
            return [ids]
        size = self._engine.context
        return [ids[start : start + size] for start in range(0, len(ids), size)]

    def _run(self, writer: TraceWriter, turn: int, ids: Sequence[int], n_predict: int) -> int:
        if self._left > 0 and not n_predict:
            ids = ids[: self._left]
        self._engine.reset()
        if n_predict:
            sampler = Sampler(SamplingParams(temperature=0.0), self._session.opened.config.vocab_size)
            for _ in self._engine.generate(ids, sampler, n_predict, self._session.tokenizer.stop_ids):
                pass
        else:
            self._engine.prefill(ids)
        n_tokens = 0
        for call in self._recorder.calls:
            phase = PREFILL if n_predict and call.phase == "prefill" else DECODE
            self._write_call(writer, turn, phase, call)
            n_tokens += len(call.token_ids)
        self._recorder.calls.clear()
        self._left = max(0, self._left - n_tokens) if self._left > 0 else self._left
        return n_tokens

    def _write_call(self, writer: TraceWriter, turn: int, phase: int, call: CallRecord) -> None:
        for token in range(len(call.token_ids)):
            for record in call.layers:
                hit = record.hit[token] if record.hit is not None else None
                ids, weights = record.topk_ids[token], record.topk_weights[token]
                writer.write(turn, phase, call.start + token, record.layer, ids, weights, hit)
        if self._keep_hidden:
            steps = np.arange(call.start, call.start + len(call.token_ids), dtype=np.int32)
            self._index.append(np.stack([np.full_like(steps, turn), steps, call.token_ids.astype(np.int32)], axis=1))
            self._hidden.append(np.stack([r.hidden for r in call.layers if r.hidden is not None], axis=1))

    def _writer(self, out: TextIO) -> TraceWriter:
        opened = self._session.opened
        config, tensors = opened.config, opened.gguf.tensors
        expert_bytes = [max(s.expert_bytes) if s is not None else 0 for s in opened.controller.layers]
        dense_bytes = [
            sum(info.n_bytes for name, info in tensors.items() if name.startswith(f"blk.{layer}."))
            - sum(sum(state.expert_bytes) for state in [opened.controller.layers[layer]] if state is not None)
            for layer in range(config.num_layers)
        ]
        name = (config.name or opened.gguf.paths[0].stem).replace(" ", "_")
        router = config.router
        return TraceWriter(
            out, name, config.architecture, router.num_experts, router.num_experts_per_tok, expert_bytes, dense_bytes
        )
