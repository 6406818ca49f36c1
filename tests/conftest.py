"""Fixtures and options shared by the whole suite: quiet torch, outputs poisoned with NaN on request."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

# Triton decides when it is imported whether kernels are interpreted, and any test may be the first to import it.
os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture(scope="session", autouse=True)
def _one_torch_thread() -> None:
    """One thread in torch: tiny models gain nothing from more, and sums keep one order. Sessions without torch skip
    it.
    """
    try:
        import torch
    except ImportError:
        return
    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def _interruptible() -> None:
    """Ctrl-C works here and in child processes even where the suite was started in the background of a shell, which
    has its children ignore it.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def nan_poison(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """While the test runs, `np.empty` and `np.empty_like` give NaN (integers: their largest value).

    A kernel that leaves an output element unwritten then fails on every run instead of on an unlucky one.
    """
    empty, empty_like = np.empty, np.empty_like

    def poison(array: np.ndarray) -> np.ndarray:
        if array.dtype.kind == "f":
            array.fill(np.nan)
        elif array.dtype.kind in "iu":
            array.fill(np.iinfo(array.dtype).max)
        return array

    monkeypatch.setattr(np, "empty", lambda *args, **kwargs: poison(empty(*args, **kwargs)))
    monkeypatch.setattr(np, "empty_like", lambda *args, **kwargs: poison(empty_like(*args, **kwargs)))
    return


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """The folder with real vocabularies and recorded traces: `$PEARL_SHARED`, else beside the checkout.

    Tests skip without it.
    """
    folder = Path(os.environ.get("PEARL_SHARED") or Path(__file__).resolve().parents[2] / "shared")
    if not (folder / "data").is_dir():
        pytest.skip(f"no reference data at {folder}; set PEARL_SHARED to where it lies")
    return folder
