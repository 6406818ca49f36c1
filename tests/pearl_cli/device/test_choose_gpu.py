"""`--device`: what is found, what is refused and what it says; torch stays out where no GPU is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from kernels.quant_types import QuantType
from models.errors import UsageError
from pearl_cli.device import choose_gpu as module
from pearl_cli.device.choose_gpu import check_device_flags, choose_gpu
from pearl_cli.options import RunOptions
from pearl_cli.sizes import Size

GPU = SimpleNamespace(notes=("an old card",))


@pytest.fixture
def _a_driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(module, "DRIVER_FILES", (tmp_path,))


@pytest.fixture
def _no_driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(module, "DRIVER_FILES", (tmp_path / "none",))


@pytest.mark.usefixtures("_no_driver")
def test_auto_without_a_driver_asks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_absence", lambda: pytest.fail("torch was asked"))
    assert choose_gpu("auto") is None
    assert choose_gpu("cpu") is None


def test_auto_and_cpu_import_no_torch() -> None:
    code = (
        "import sys; import pearl_cli.device.choose_gpu as m, pearl_cli.open_engine; from pathlib import Path\n"
        "m.DRIVER_FILES = (Path('/none'),); m.choose_gpu('auto'); m.choose_gpu('cpu')\n"
        "print('torch' in sys.modules, 'triton' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


@pytest.mark.usefixtures("_a_driver")
def test_auto_with_a_driver_but_without_torch_says_so_and_computes_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PACKAGES", ("torch_that_is_not_there", "triton_neither"))
    notes: list[str] = []
    assert choose_gpu("auto", notes.append) is None
    (note,) = notes
    assert "pip install 'pearl-moe[gpu]'" in note
    assert "computing on the CPU" in note
    with pytest.raises(UsageError, match="torch_that_is_not_there and triton_neither are not installed"):
        choose_gpu("cuda")


@pytest.mark.usefixtures("_a_driver")
@pytest.mark.parametrize("fault", ["this torch is built without CUDA", "torch finds no usable GPU"])
def test_torch_without_a_gpu(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    monkeypatch.setattr(module, "_absence", lambda: fault)
    assert choose_gpu("auto") is None
    with pytest.raises(UsageError, match=f"--device cuda: {fault}; --device cpu computes without one"):
        choose_gpu("cuda")


@pytest.mark.usefixtures("_a_driver")
@pytest.mark.parametrize("asked", ["auto", "cuda"])
def test_a_gpu_is_opened_and_its_notes_are_said(monkeypatch: pytest.MonkeyPatch, asked: str) -> None:
    monkeypatch.setattr(module, "_absence", lambda: None)
    monkeypatch.setattr(module, "_open", lambda: GPU)
    notes: list[str] = []
    assert choose_gpu(asked, notes.append) is GPU
    assert notes == ["an old card"]
    assert choose_gpu("cpu", notes.append) is None


@pytest.mark.usefixtures("_a_driver")
def test_types_without_gpu_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_absence", lambda: None)
    monkeypatch.setattr(module, "_open", lambda: GPU)
    types = {QuantType.Q2_K, QuantType.Q8_0, QuantType.IQ4_XS}
    with pytest.raises(UsageError, match="no GPU kernels for IQ4_XS, Q2_K, only for F32, "):
        choose_gpu("cuda", None, types)
    assert choose_gpu("auto", None, types) is None
    assert choose_gpu("auto", None, types - {QuantType.Q2_K, QuantType.IQ4_XS}) is GPU


def test_why_this_torch_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    from kernels.gpu import open_gpu

    monkeypatch.setattr(open_gpu.torch.version, "cuda", None)
    monkeypatch.setattr(open_gpu.torch.version, "hip", None)
    assert "built without CUDA" in str(open_gpu.absence())
    monkeypatch.setattr(open_gpu.torch.version, "cuda", "12.8")
    monkeypatch.setattr(open_gpu.torch.cuda, "is_available", lambda: False)
    assert "CUDA_VISIBLE_DEVICES" in str(open_gpu.absence())
    monkeypatch.setattr(open_gpu.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(open_gpu, "launch_fault", lambda: "no C compiler")
    assert open_gpu.absence() == "no C compiler"
    monkeypatch.setattr(open_gpu, "launch_fault", lambda: None)
    assert open_gpu.absence() is None


def test_why_triton_cannot_launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says what to install; nvcc is none of it."""
    from kernels.gpu import toolchain

    header = tmp_path / "Python.h"
    assert "install gcc or clang, or set CC" in toolchain.explain(RuntimeError("a"), None, header)
    assert "python3-dev" in toolchain.explain(RuntimeError("a"), "/usr/bin/gcc", header)
    header.touch()
    assert "(libcuda cannot be found)" in toolchain.explain(
        AssertionError("libcuda cannot be found\nmore"), "/usr/bin/gcc", header
    )

    def fails() -> int:
        raise RuntimeError("Failed to find C compiler")

    monkeypatch.setattr(toolchain, "driver", SimpleNamespace(active=SimpleNamespace(get_current_device=fails)))
    monkeypatch.setenv("CC", "no-such-compiler")
    assert "finds no C compiler" in str(toolchain.launch_fault())
    monkeypatch.setattr(toolchain, "driver", SimpleNamespace(active=SimpleNamespace(get_current_device=lambda: 0)))
    assert toolchain.launch_fault() is None


def test_flags_about_a_gpu_without_one() -> None:
    options = RunOptions(vram=Size(n_bytes=1), miss="auto")
    notes: list[str] = []
    check_device_flags(options, True, notes.append)
    assert notes == []
    check_device_flags(options, False, notes.append)
    assert notes == [
        "--vram has no effect: no GPU is used here, and --ram bounds a run on the CPU",
        "--miss auto has no effect: no GPU is used here, and the CPU computes every expert itself",
    ]
    with pytest.raises(UsageError, match="--miss cpu is about a GPU and --device is cpu"):
        check_device_flags(RunOptions(device="cpu", miss="cpu"), False, notes.append)
