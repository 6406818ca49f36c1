"""Whether Triton can launch kernels here: it compiles a small C module for that, the first time, against Python's
headers and the driver's library. The compilers of kernels themselves (ptxas, LLVM) come with it; nvcc is not needed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
from pathlib import Path

from triton.runtime import driver


def launch_fault() -> str | None:
    """What stands in the way, with what to do about it; None when nothing does. Tries it, where there is a GPU."""
    try:
        driver.active.get_current_device()
    except (RuntimeError, AssertionError, OSError, ImportError, subprocess.CalledProcessError) as error:
        return explain(error, shutil.which(_compiler() or ""), Path(sysconfig.get_paths()["include"]) / "Python.h")
    return None


def explain(error: BaseException, compiler: str | None, header: Path) -> str:
    """The likely reason of `error`; compiler: its path, None where there is none."""
    if compiler is None:
        return "triton finds no C compiler, which it needs to launch kernels; install gcc or clang, or set CC"
    if not header.exists():
        return f"triton needs {header} to launch kernels; install Python's headers (python3-dev)"
    first = str(error).strip().splitlines() or [type(error).__name__]
    return f"triton cannot launch kernels ({first[0]}); try `python -c 'import triton; triton.runtime.driver.active'`"


def _compiler() -> str | None:
    """As Triton looks for it."""
    return os.environ.get("CC") or next((name for name in ("gcc", "clang") if shutil.which(name)), None)
