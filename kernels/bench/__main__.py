"""`python -m kernels.bench [--op NAME] [--type NAME] [--shape NAME] [--threads N] [--json] [--roofline]`

Prints for each op, type and shape the median time, GB/s of weights (or cache) read, that rate as per cent of the
memory read rate measured first, and GFLOP/s of ops over many tokens. An op whose answer differs from the reference is
not timed; the exit code is then 1. With --roofline nothing is timed: it prints the bytes and operations of each launch
of the GPU kernels, and the floor in microseconds for named GPUs.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from kernels.backend import Backend
from kernels.bench.memory_rate import measure
from kernels.bench.ops import DEPTH, OPS, PROMPT, Case, fits
from kernels.bench.roofline import roofline, table
from kernels.bench.shapes import SHAPES, Shape
from kernels.cpu.backend import CpuBackend
from kernels.cpu.parallel import max_threads
from kernels.quant_types import QuantType

DEFAULT_TYPES = ("Q8_0", "Q4_K", "Q6_K", "MXFP4", "F16", "F32")
ROOFLINE_TYPES = ("Q4_K",)
_MIN_RUNS, _MAX_RUNS = 5, 300


def median_seconds(run: Callable[[], object], budget_s: float) -> tuple[float, int]:
    """(median, runs) after one run that does not count: at least 5 runs, then more until the budget is spent."""
    run()
    times: list[float] = []
    stop = time.perf_counter() + budget_s
    while len(times) < _MIN_RUNS or (time.perf_counter() < stop and len(times) < _MAX_RUNS):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return sorted(times)[len(times) // 2], len(times)


def record(
    op: str, shape: Shape, quant_type: QuantType, case: Case, read_rate: float, budget_s: float
) -> dict[str, Any]:
    """The figures of one op, or its error alone where the check fails."""
    error = case.error()
    result: dict[str, Any] = {"op": op, "shape": shape.name, "type": quant_type.name, "rms_error": error}
    result["ok"] = bool(error <= case.limit)
    if not result["ok"]:
        return {**result, "rms_error_limit": case.limit}
    seconds, runs = median_seconds(case.run, budget_s)
    rate = case.n_bytes / seconds
    result.update(
        ms=1e3 * seconds, runs=runs, n_bytes=case.n_bytes, gb_s=rate / 1e9, percent_of_read=100 * rate / read_rate
    )
    if op.endswith(f"-{PROMPT}"):
        result["gflop_s"] = case.n_flops / seconds / 1e9
    return result


def line(result: dict[str, Any]) -> str:
    """One row of the table."""
    head = f"{result['op']:<15} {result['type']:<7} {result['shape']:<14}"
    if not result["ok"]:
        return f"{head} NOT TIMED: RMS error {result['rms_error']:.2e} over {result['rms_error_limit']:.0e}"
    flops = f"{result['gflop_s']:>9.0f}" if "gflop_s" in result else f"{'-':>9}"
    rates = f"{result['ms']:>10.4f} {result['gb_s']:>8.2f} {result['percent_of_read']:>6.1f}"
    return f"{head} {rates} {flops} {result['rms_error']:>9.1e}"


def selected(arguments: argparse.Namespace) -> Iterator[tuple[str, Shape, QuantType]]:
    """The (op, shape, type) triples asked for that exist; without --type the usual types and those of caches."""
    wanted = {QuantType[name] for name in arguments.type or DEFAULT_TYPES}
    for shape_name in arguments.shape or SHAPES:
        for op in arguments.op or OPS:
            for quant_type in OPS[op][1]:
                if quant_type in wanted and fits(SHAPES[shape_name], quant_type):
                    yield op, SHAPES[shape_name], quant_type


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m kernels.bench", description=(__doc__ or "").split("\n\n")[1])
    types = sorted({t.name for _, all_types, _ in OPS.values() for t in all_types})
    made.add_argument("--op", action="append", choices=list(OPS), help="an op (may be repeated; default: all)")
    made.add_argument(
        "--type", action="append", type=str.upper, choices=types, help=f"default: {', '.join(DEFAULT_TYPES)}"
    )
    made.add_argument("--shape", action="append", choices=list(SHAPES), help="default: all")
    made.add_argument("--threads", type=int, default=max_threads(), help="default: all cores")
    made.add_argument("--seconds", type=float, default=0.4, help="time spent on an op (default 0.4)")
    made.add_argument("--roofline", action="store_true", help="floors of the GPU kernels, computed and not measured")
    made.add_argument("--json", action="store_true", help="one JSON array on stdout instead of the table")
    return made


def run(backend: Backend, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure, printing each row as it is there (to stderr where stdout holds JSON)."""
    stream = sys.stderr if arguments.json else sys.stdout
    read_rate = measure(arguments.threads)
    print(f"{arguments.threads} threads, memory reads {read_rate / 1e9:.1f} GB/s", file=stream)
    heads = ("op", "type", "shape", "ms", "GB/s", "% read", "GFLOP/s", "RMS error")
    print("{:<15} {:<7} {:<14} {:>10} {:>8} {:>6} {:>9} {:>9}".format(*heads), file=stream)
    results = []
    for op, shape, quant_type in selected(arguments):
        case = OPS[op][0](backend, shape, quant_type, OPS[op][2])
        found = record(op, shape, quant_type, case, read_rate, arguments.seconds)
        results.append({**found, "threads": arguments.threads, "read_gb_s": read_rate / 1e9})
        print(line(found), file=stream, flush=True)
    return results


def print_roofline(arguments: argparse.Namespace) -> None:
    """The floors of one token at DEPTH and of a prompt."""
    records = [
        record
        for shape_name in arguments.shape or SHAPES
        for type_name in arguments.type or ROOFLINE_TYPES
        if fits(SHAPES[shape_name], QuantType[type_name])
        for n_tokens, depth in ((1, DEPTH), (PROMPT, PROMPT))
        for record in roofline(SHAPES[shape_name], QuantType[type_name], n_tokens, depth)
    ]
    print(json.dumps(records) if arguments.json else table(records))


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parser().parse_args(argv)
    if arguments.roofline:
        if arguments.op:
            parser().error("--roofline prints all launches of a layer; --op does not apply")
        print_roofline(arguments)
        return 0
    if not 1 <= arguments.threads <= max_threads():
        parser().error(f"--threads {arguments.threads}: this process may use 1 to {max_threads()}")
    results = run(CpuBackend(arguments.threads), arguments)
    if arguments.json:
        print(json.dumps(results))
    return 0 if all(r["ok"] for r in results) else 1


if __name__ == "__main__":
    sys.exit(main())
