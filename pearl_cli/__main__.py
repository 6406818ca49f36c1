"""Entry point: checks that the packages are pearl's own, runs the command, and turns every user's fault into one
line and an exit code.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
from pathlib import Path

from pearl_cli.standard_streams import drop_what_stdout_refused, open_closed_streams, prepare_streams

PACKAGES = ("pearl_cli", "kernels", "convert", "models")


def foreign_packages(root: Path) -> list[str]:
    """Names among PACKAGES that Python would import from somewhere else than `root`, or whose files were
    overwritten.
    """
    from importlib.util import find_spec

    foreign = []
    for name in PACKAGES:
        spec = find_spec(name)
        init = Path(spec.origin) if spec and spec.origin else None
        if init is None or init.parent.resolve() != root / name or "__pearl__" not in init.read_text(encoding="utf-8"):
            foreign.append(f"'{name}' is {init.parent if init else 'missing'}")
    return foreign


def leave_what_is_left() -> None:
    """At the end: what is left goes with the process, without a search for cycles in it (0.04 s). Where triton was
    imported it is searched, since triton's bindings list everything that is left.
    """
    if "triton" not in sys.modules:
        gc.freeze()


def main(argv: list[str] | None = None) -> int:
    """Run `pearl` with `argv` (default: the process's own) and return the exit code."""
    open_closed_streams()
    if argv is None:
        prepare_streams()
        # numpy's matrix products are those of small forecasts; threads of their own, beyond -t, only get in the way of
        # the kernels' (the demo's median token under a budget: 2.72 ms with them, 2.52 without). Read when numpy loads.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        atexit.register(leave_what_is_left)
    args = sys.argv[1:] if argv is None else argv
    foreign = foreign_packages(Path(__file__).resolve().parent.parent)
    if foreign:
        print(
            f"pearl: another package hides one of pearl's own ({'; '.join(foreign)}); "
            "install pearl-moe in a virtual environment of its own, or start it outside that folder",
            file=sys.stderr,
        )
        return 2
    from pearl_cli.main import run

    if argv is None:
        from pearl_cli.cache_dir import make_room_for_kernels

        make_room_for_kernels(Path(__file__).resolve().parent.parent / "kernels" / "cpu")
    code = run(args)
    if argv is None:
        drop_what_stdout_refused()
    return code


if __name__ == "__main__":
    sys.exit(main())
