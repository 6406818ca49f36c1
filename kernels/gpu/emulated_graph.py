"""What a CUDA graph keeps, on the CPU: the launches of interpreted kernels and torch's operations, with the very
numbers and the very memory of the call that was recorded.

Like a device, recording leaves memory as it was: what it computes on the way is undone. What is not a launch cannot be
recorded, so asking the host for memory, or telling it a value, is an error meanwhile. A replay finds NaN in memory that
the recording took without filling it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten
from triton.runtime.interpreter import GridExecutor

Step = Callable[[], object]

_UNFILLED = ("empty", "empty_like", "empty_strided", "new_empty")


class Recorder(TorchDispatchMode):  # type: ignore[misc]
    """Keeps a step for everything that happens while it is the mode; `undo` afterwards."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[Step] = []
        self.in_kernel = False
        self._before: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # by address: memory, and what was there

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.in_kernel:
            return func(*args, **kwargs)
        name = func.overloadpacket.__name__
        if name == "_local_scalar_dense":
            raise RuntimeError("a recording cannot tell the host a value")
        takes = func._schema.arguments
        writes = [taken.alias_info is not None and taken.alias_info.is_write for taken in takes]
        named = {taken.name for taken, written in zip(takes, writes, strict=True) if written}
        changed = [arg for arg, written in zip(args, writes, strict=False) if written]
        self.save([*changed, *(value for key, value in kwargs.items() if key in named)])
        out = func(*args, **kwargs)
        if name in _UNFILLED:
            self.steps += [partial(_poison, tensor) for tensor in _tensors(out)]
        elif any(writes):
            self.steps.append(partial(func, *args, **kwargs))
        elif not any(result.alias_info is not None for result in func._schema.returns):
            self.steps.append(partial(_again, partial(func, *args, **kwargs), _tensors(out)))
        return out

    def launch(self, executor: GridExecutor, real: Any, args: Any, kwargs: Any) -> None:
        """A kernel: any of its arrays may be written."""
        self.save([*args, *kwargs.values()])
        self.in_kernel = True
        try:
            real(executor, *args, **kwargs)
        finally:
            self.in_kernel = False
        self.steps.append(partial(real, executor, *args, **kwargs))

    def save(self, values: list[Any]) -> None:
        """Remember memory that is about to change."""
        for tensor in _tensors(values):
            storage = tensor.untyped_storage()
            if storage.data_ptr() in self._before:
                continue
            with _plainly(self):
                whole = torch.empty(0, dtype=torch.uint8).set_(storage, 0, (storage.nbytes(),), (1,))
                self._before[storage.data_ptr()] = whole, whole.clone()

    def undo(self) -> None:
        """Put back what was there, outside of the mode."""
        for memory, before in self._before.values():
            memory.copy_(before)
        self._before.clear()


def record(work: Callable[[], None]) -> list[Step]:
    """The steps of `work`, none of whose effects remain. Raises RuntimeError for what cannot be recorded."""
    recorder, launch = Recorder(), GridExecutor.__call__

    def launched(executor: GridExecutor, *args: Any, **kwargs: Any) -> None:
        recorder.launch(executor, launch, args, kwargs)

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("a recording cannot use the host's memory")

    with (
        mock.patch.object(GridExecutor, "__call__", launched),
        mock.patch.object(torch, "from_numpy", refuse),
        mock.patch.object(torch.Tensor, "numpy", refuse),
    ):
        try:
            with recorder:
                work()
        finally:
            recorder.undo()
    return recorder.steps


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_flatten(tree)[0] if isinstance(leaf, torch.Tensor)]


def _poison(tensor: torch.Tensor) -> None:
    tensor.fill_(float("nan") if tensor.dtype.is_floating_point else torch.iinfo(tensor.dtype).max)


def _again(work: Callable[[], Any], results: list[torch.Tensor]) -> None:
    for result, value in zip(results, _tensors(work()), strict=True):
        result.copy_(value)


@contextlib.contextmanager
def _plainly(recorder: Recorder) -> Iterator[None]:
    """torch's operations of the recorder itself."""
    before, recorder.in_kernel = recorder.in_kernel, True
    try:
        yield
    finally:
        recorder.in_kernel = before
