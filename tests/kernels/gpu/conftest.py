"""Triton kernels run on the CPU through Triton's interpreter here, on float32 tensors of torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")


@pytest.fixture(autouse=True)
def _torch_poison(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """`torch.empty` and `torch.empty_like` give NaN (integers: their largest value), so that an output element which a
    kernel leaves unwritten is seen.
    """
    empty, empty_like = torch.empty, torch.empty_like

    def poison(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.fill_(float("nan") if tensor.dtype.is_floating_point else torch.iinfo(tensor.dtype).max)

    monkeypatch.setattr(torch, "empty", lambda *args, **kwargs: poison(empty(*args, **kwargs)))
    monkeypatch.setattr(torch, "empty_like", lambda *args, **kwargs: poison(empty_like(*args, **kwargs)))
    return


@pytest.fixture(scope="session")
def gpu() -> Any:
    """A GpuBackend on the interpreter."""
    from kernels.gpu.backend import GpuBackend

    backend = GpuBackend()
    assert backend.device.interpreted
    return backend
