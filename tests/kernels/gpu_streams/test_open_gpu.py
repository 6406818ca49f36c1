"""What is said about a GPU when it is opened."""

from __future__ import annotations

import pytest
import torch

from kernels.gpu.open_gpu import open_gpu


class Calls:
    name = "a card"


@pytest.mark.parametrize(
    ("capability", "hip", "noted"), [((7, 5), None, True), ((8, 0), None, False), ((7, 5), "6.2", False)]
)
def test_an_old_card_is_noted(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], hip: str | None, noted: bool
) -> None:
    monkeypatch.setattr("kernels.gpu.torch_calls.TorchCalls", Calls)
    monkeypatch.setattr("kernels.gpu.backend.GpuBackend", object)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    monkeypatch.setattr(torch.version, "hip", hip)
    notes = open_gpu().notes
    assert bool(notes) is noted
    assert all("a card has neither bf16 nor tf32: it computes in float32" in note for note in notes)
