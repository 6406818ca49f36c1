"""`measure.run` on the emulated device and a tiny model.

Usage: python emulated_measure.py FOLDER. A program of its own, because Triton decides at import whether kernels are
interpreted.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

from kernels.gpu.backend import GpuBackend
from kernels.gpu.emulated_calls import EmulatedCalls
from kernels.gpu.open_gpu import OpenGpu
from pearl_cli.device import choose_gpu
from pearl_cli.options import RunOptions
from tests.gpu import kernel_checks, measure, residency_runs
from tests.gpu.report import as_record
from tests.tiny_gguf import tiny_moe, write_gguf


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    model = tiny_moe("olmoe", num_layers=1)
    path = write_gguf(folder / "tiny.gguf", model.metadata, model.tensors)
    choose_gpu._absence = lambda: None
    choose_gpu._open = lambda: OpenGpu(EmulatedCalls(1, as_array=torch.from_numpy), GpuBackend(), "emulated")
    gpu = choose_gpu._open()
    residency_runs.SHARES = (100, 25)
    base = RunOptions(device="cuda", ctx_size=32, no_profile=True, seed=1)

    def check() -> list[dict[str, Any]]:
        groups = (*kernel_checks.groups()[:2], kernel_checks.OTHERS)  # two types suffice for the script's logic
        return [
            as_record(found) for name in groups for found in kernel_checks.checks_of_group(gpu.backend, name, False)
        ]

    def broken() -> Path:
        raise OSError("no room for a model")

    plan = measure.Plan(
        check, path, [lambda: path, broken], 2, lambda: [path, folder / "none.gguf"], base, n_prompt=2, n_gen=1
    )
    measure.run(gpu, plan, folder, 1e9, lambda text: print(text, file=sys.stderr))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
