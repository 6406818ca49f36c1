"""`python -m kernels.gpu.compile_matrix`: compile every kernel for GPUs that are not there, and hold the compiler's
report against limits.

Nothing may spill or use local memory; registers and shared memory stay below the table here. All of it takes about
seven minutes of a core. The sample has each op once.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor

from kernels.gpu.backend import GpuBackend
from kernels.gpu.compile_ahead import DEVICES, Report, compiled_for
from kernels.gpu.compile_cases import CASES

MAX_REGISTERS = {"matmul": 255, "prefill": 255, "attention": 255}
"""By what a kernel's name holds. 255 is all that a thread can have: one program of four warps a scheduler is enough for
tensor cores."""
MAX_REGISTERS_ELSE = 128  # four programs of four warps on a unit, which keeps memory busy

MAX_SHARED_BYTES = {"sm_80": 163 << 10, "sm_89": 99 << 10, "sm_90": 227 << 10, "sm_100": 227 << 10, "gfx942": 64 << 10}
"""What a program can have at most, by the architecture's own manual."""

Work = tuple[str, int]  # (arch, index in CASES)


def everything() -> list[Work]:
    return [(arch, i) for arch in DEVICES for i in range(len(CASES))]


def sample() -> list[Work]:
    """Each op once, its variants and the architectures in turn."""
    archs, by_op = list(DEVICES), defaultdict(list)
    for i, case in enumerate(CASES):
        by_op[case.op].append(i)
    return [(archs[k % len(archs)], indices[k % len(indices)]) for k, indices in enumerate(by_op.values())]


def compile_case(work: Work) -> list[dict[str, object]]:
    """Reports of one case, with its op and variant."""
    arch, index = work
    case = CASES[index]
    with compiled_for(arch) as reports:
        case.launch(GpuBackend(DEVICES[arch]))
    return [{"op": case.op, "variant": case.variant, **{k: getattr(r, k) for k in Report.__slots__}} for r in reports]


def faults(row: dict[str, object]) -> list[str]:
    """What of a report is over the limits."""
    found = [f"{name} {row[name]}" for name in ("spill_bytes", "local_bytes") if row[name]]
    limits = [limit for part, limit in MAX_REGISTERS.items() if part in str(row["kernel"])]
    most = max(limits, default=MAX_REGISTERS_ELSE)
    if int(str(row["registers"])) > most:
        found.append(f"registers {row['registers']} over {most}")
    if int(str(row["shared_bytes"])) > MAX_SHARED_BYTES[str(row["arch"])]:
        found.append(f"shared_bytes {row['shared_bytes']} over {MAX_SHARED_BYTES[str(row['arch'])]}")
    return found


def compile_all(works: Iterable[Work], jobs: int) -> list[dict[str, object]]:
    """All reports, in the order of the work; `jobs` processes, or none beside this one."""
    works = list(works)
    if jobs == 1:
        return [row for work in works for row in compile_case(work)]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        return [row for rows in pool.map(compile_case, works, chunksize=4) for row in rows]


def markdown(rows: Sequence[dict[str, object]]) -> str:
    """A table: one line a kernel and op, the largest figures over variants for each architecture."""
    cells: dict[tuple[str, str], dict[str, tuple[int, int, int]]] = defaultdict(dict)
    for row in rows:
        key, arch = (str(row["kernel"]).strip("_"), str(row["op"])), str(row["arch"])
        figures = tuple(int(str(row[k])) for k in ("registers", "spill_bytes", "shared_bytes"))
        old = cells[key].get(arch, (0, 0, 0))
        cells[key][arch] = tuple(map(max, old, figures))  # type: ignore[assignment]
    heads = "".join(f" {arch} |" for arch in DEVICES)
    lines = [f"| kernel | op |{heads}", "|---|---|" + "---|" * len(DEVICES)]
    for (kernel, op), by_arch in sorted(cells.items()):
        shown = ("{} / {} / {}".format(*by_arch[arch]) if arch in by_arch else "-" for arch in DEVICES)
        lines.append(f"| {kernel} | {op} | {' | '.join(shown)} |")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m kernels.gpu.compile_matrix", description=__doc__)
    parser.add_argument("--sample", action="store_true", help="each op once")
    parser.add_argument("--arch", action="append", choices=list(DEVICES), help="default: all")
    parser.add_argument("--op", action="append", help="ops that begin with this (may be repeated; default: all)")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--json", action="store_true", help="one JSON array of all reports instead of the table")
    parser.add_argument("--brief", action="store_true", help="what is wrong and the last line only")
    arguments = parser.parse_args(argv)
    started = time.perf_counter()
    works = sample() if arguments.sample else everything()
    works = [w for w in works if not arguments.arch or w[0] in arguments.arch]
    works = [w for w in works if not arguments.op or CASES[w[1]].op.startswith(tuple(arguments.op))]
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["TRITON_CACHE_DIR"] = scratch  # some 300 MB that nobody would read
        rows = compile_all(works, arguments.jobs)
    if not arguments.brief:
        print(json.dumps(rows) if arguments.json else markdown(rows))
    bad = [(row, faults(row)) for row in rows if faults(row)]
    for row, found in bad:
        print(f"{row['arch']} {row['op']} {row['variant']} {row['kernel']}: {', '.join(found)}", file=sys.stderr)
    archs, seconds = sorted({str(row["arch"]) for row in rows}, key=list(DEVICES).index), time.perf_counter() - started
    last = f"{len(rows)} kernels compiled for {', '.join(archs)} in {seconds:.0f} s, {len(bad)} over the limits"
    print(last, file=sys.stderr)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
