"""`--timeline FILE`: what each thread did when, as a Chrome trace (open it in ui.perfetto.dev or chrome://tracing).

Recording replaces a few methods of the running objects by ones that note their begin and end, and puts them back; a run
without it pays nothing. Times are a few microseconds longer than without.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pearl_cli.bench.workload import Workload
from pearl_cli.device.copy_queue import CopyQueue
from pearl_cli.opened_engine import OpenedEngine
from pearl_cli.residency.load import Load
from pearl_cli.residency.read_piece import ReadPiece
from pearl_cli.result_file import result_file

MAX_EVENTS = 200_000  # about 30 MB of JSON; later events are left out and counted

_LINEARS = ("gate", "up", "down")


class Timeline:
    """Events so far; `dropped` did not fit."""

    def __init__(self) -> None:
        self.dropped = 0
        self._events: list[dict[str, Any]] = []
        self._origin = time.perf_counter()

    def span(self, name: str, category: str, begin: float, end: float, **about: Any) -> None:
        """Something that took from `begin` to `end` (time.perf_counter) on the calling thread."""
        self._add({"ph": "X", "name": name, "cat": category, "ts": self._us(begin), "dur": (end - begin) * 1e6}, about)

    def instant(self, name: str, category: str, **about: Any) -> None:
        """Something that happened now on the calling thread."""
        self._add({"ph": "i", "s": "t", "name": name, "cat": category, "ts": self._us(time.perf_counter())}, about)

    def _us(self, moment: float) -> float:
        return (moment - self._origin) * 1e6

    def _add(self, event: dict[str, Any], about: dict[str, Any]) -> None:
        if len(self._events) >= MAX_EVENTS:
            self.dropped += 1
            return
        self._events.append({**event, "pid": 1, "tid": threading.get_ident(), "args": about})

    def write(self, path: Path) -> int:
        """Write the trace and return the number of events. Raises OSError."""
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        rows = [
            {"ph": "M", "name": "thread_name", "pid": 1, "tid": tid, "args": {"name": names.get(tid, f"thread {tid}")}}
            for tid in dict.fromkeys(event["tid"] for event in self._events)
        ]
        path.write_text(json.dumps({"displayTimeUnit": "ms", "traceEvents": rows + self._events}))
        return len(self._events)


@contextmanager
def recording(timeline: Timeline, opened: OpenedEngine) -> Iterator[None]:
    """Record kernels, gates, demands, forecasts, reads and waits of `opened` while the block runs."""
    controller, queue = opened.controller, opened.controller.queue
    replaced: list[tuple[object, str]] = []

    def replace(owner: object, name: str, make: Callable[[Any], Any]) -> None:
        setattr(owner, name, make(getattr(owner, name)))
        replaced.append((owner, name))

    replace(opened.engine, "decode_step", lambda call: _spanned(timeline, call, "token", lambda a: ("decode step", {})))
    replace(controller, "select", lambda call: _spanned(timeline, call, "gate", lambda a: (f"gate {a[0]}", {})))
    replace(controller, "compute", lambda call: _spanned(timeline, call, "experts", _describe_compute))
    replace(queue, "demand", lambda call: _noted(timeline, call, "demand"))
    replace(queue, "prefetch", lambda call: _noted(timeline, call, "prefetch"))
    replace(queue, "promote", lambda call: _noted(timeline, call, "promote"))
    reader = queue.host.queue if isinstance(queue, CopyQueue) else queue
    replace(reader, "_wait_for_arrival", lambda call: _spanned(timeline, call, "wait", lambda a: ("wait", {})))
    replace(reader, "_fetch", lambda call: _spanned(timeline, call, "read", _describe_read))
    opened.timing.time_kernels(True, lambda name, begin, end: timeline.span(name, "kernel", begin, end))
    try:
        yield
    finally:
        opened.timing.time_kernels(False)
        for owner, name in replaced:
            delattr(owner, name)  # the class's own method shows again


def trace_decoding(opened: OpenedEngine, workload: Workload, path: Path, n_steps: int = 8) -> str:
    """Decode `n_steps` tokens of `workload` outside every measurement, write their trace for --timeline, and say what
    was written. Raises WriteFailure.
    """
    timeline = Timeline()
    with recording(timeline, opened):
        opened.engine.reset()
        logits = opened.engine.prefill(workload.prompt(1))
        forced = workload.continuation(n_steps, after=1) if workload.teacher_forced else None
        for step in range(n_steps):
            logits = opened.engine.decode_step(forced[step] if forced else int(logits.argmax()))
    with result_file(path, "--timeline") as place:
        return f"{path}: {timeline.write(place)} events of {n_steps} decode steps, {timeline.dropped} left out"


def _spanned(
    timeline: Timeline, call: Callable[..., Any], category: str, describe: Callable[[tuple[Any, ...]], Any]
) -> Callable[..., Any]:
    def timed(*args: Any, **kwargs: Any) -> Any:
        begin = time.perf_counter()
        try:
            return call(*args, **kwargs)
        finally:
            name, about = describe(args)
            timeline.span(name, category, begin, time.perf_counter(), **about)

    return timed


def _noted(timeline: Timeline, call: Callable[..., Any], name: str) -> Callable[..., Any]:
    def told(loads: Sequence[Load]) -> Any:
        if loads:
            experts = [load.expert for load in loads]
            timeline.instant(f"{name} {loads[0].layer}", name, layer=loads[0].layer, experts=experts)
        return call(loads)

    return told


def _describe_compute(args: tuple[Any, ...]) -> tuple[str, dict[str, Any]]:
    layer, _, routing = args
    ids = routing.topk_ids[0].tolist() if len(routing.topk_ids) == 1 else []
    return f"experts {layer}", {"layer": layer, "topk_ids": ids}


def _describe_read(args: tuple[Any, ...]) -> tuple[str, dict[str, Any]]:
    pieces: Sequence[ReadPiece] = args[0]
    first, names = pieces[0].load, [f"{piece.load.layer}/{piece.load.expert}" for piece in pieces]
    about = {
        "layer": first.layer,
        "experts": [piece.load.expert for piece in pieces],
        "linears": [[name for i, name in enumerate(_LINEARS) if piece.mask >> i & 1] for piece in pieces],
        "bytes": sum(len(piece.out) for piece in pieces),
        "priority": "demand" if first.demanded else "prefetch",
    }
    return f"read {' '.join(names)}", about
