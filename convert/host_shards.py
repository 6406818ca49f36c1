"""The files of a planned conversion in host memory instead of on a disk, made tensor by tensor.

One region holds all files one behind the other, each from a page border on, so that an expert lies there as it would
in a file: the tensors' offsets are the chunk table, `address` turns an entry into a pointer, and `allocate` says what
kind of memory it is. A tensor is made when it is first asked for, or with all others by `fill`; pages of tensors that
nobody wants are never touched.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait

import numpy as np

from convert.gguf_layout import align_up
from convert.pipeline import jobs_of
from convert.plan import Plan
from models.gguf_files import MemoryFiles

_PAGE = 4096
_PIECE_PEAK_BYTES = 32 << 20  # a piece of 2^20 weights as read, as float32, as blocks, and what quantising takes
Allocate = Callable[[int], np.ndarray]


class HostShards(MemoryFiles):
    """The files of `plan.layouts`; they own the source that they are made from, by its `close`.

    `allocate(n_bytes)` gives zeroed page-aligned uint8 memory whose pages become resident when touched.
    """

    def __init__(self, plan: Plan, allocate: Allocate, close_source: Callable[[], None]) -> None:
        self._layouts = plan.layouts
        self._jobs_of = jobs_of(plan)
        self._close_source = close_source
        sizes = [align_up(layout.file_bytes, _PAGE) for layout in plan.layouts]
        self._starts = [sum(sizes[:index]) for index in range(len(sizes))]
        self._region = allocate(sum(sizes))
        self._made = [[False] * len(layout.tensors) for layout in plan.layouts]
        self._making = threading.Lock()
        self.closed = False
        for index, layout in enumerate(plan.layouts):
            self._bytes(index, 0, len(layout.header))[:] = np.frombuffer(layout.header, np.uint8)

    @property
    def region(self) -> np.ndarray:
        return self._region

    def header(self, file_index: int, n_bytes: int, offset: int) -> bytes:
        """What stands in a file's head, for a reader of headers."""
        return self._bytes(file_index, offset, n_bytes).tobytes()

    def address(self, file_index: int, offset: int) -> int:
        return int(self._region.ctypes.data) + self._starts[file_index] + offset

    def read(self, file_index: int, offset: int, out: memoryview) -> int:
        """Copy what is there; makes the tensors in that stretch first. Raises what making them raises."""
        n_bytes = max(0, min(len(out), self._layouts[file_index].file_bytes - offset))
        out[:n_bytes] = self._ready(file_index, offset, n_bytes).data
        return n_bytes

    def resident(self, file_index: int, offset: int, n_bytes: int) -> np.ndarray:
        return self._ready(file_index, offset, n_bytes)

    def missing_bytes(self, wanted: Callable[[str], bool]) -> int:
        return sum(
            align_up(tensor.n_bytes, _PAGE)
            for layout, made in zip(self._layouts, self._made, strict=True)
            for tensor, is_made in zip(layout.tensors, made, strict=True)
            if not is_made and wanted(tensor.name)
        )

    def filling_bytes(self, threads: int) -> int:
        return threads * _PIECE_PEAK_BYTES

    def fill(
        self, wanted: Callable[[str], bool], threads: int, progress: Callable[[int, int], None] | None = None
    ) -> None:
        """As `MemoryFiles.fill`, on `threads` threads, one piece of a tensor at a time each. Raises the first error."""
        todo = [
            (file_index, index)
            for file_index, layout in enumerate(self._layouts)
            for index, tensor in enumerate(layout.tensors)
            if not self._made[file_index][index] and wanted(tensor.name)
        ]
        total = sum(self._layouts[f].tensors[t].n_bytes for f, t in todo)
        done = 0
        pool = ThreadPoolExecutor(max_workers=threads, thread_name_prefix="convert")
        try:
            futures = {pool.submit(self._make, *at): at for at in todo}
            waiting = set(futures)
            while waiting:
                finished, waiting = wait(waiting, timeout=0.2, return_when=FIRST_EXCEPTION)
                for future in finished:
                    future.result()
                    file_index, index = futures[future]
                    done += self._layouts[file_index].tensors[index].n_bytes
                if progress is not None:
                    progress(done, total)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def close(self) -> None:
        """Give the region up, but for what others still look at, and close the source."""
        if not self.closed:
            self.closed = True
            self._region = np.empty(0, np.uint8)
            self._close_source()

    def _bytes(self, file_index: int, offset: int, n_bytes: int) -> np.ndarray:
        start = self._starts[file_index] + offset
        return self._region[start : start + n_bytes]

    def _ready(self, file_index: int, offset: int, n_bytes: int) -> np.ndarray:
        """A stretch of a file with all its tensors made."""
        layout, made = self._layouts[file_index], self._made[file_index]
        index = max(0, bisect_right(layout.offsets, offset) - 1)
        while index < len(made) and layout.offsets[index] < offset + n_bytes:
            if not made[index]:
                with self._making:
                    self._make(file_index, index)
            index += 1
        return self._bytes(file_index, offset, n_bytes)

    def _make(self, file_index: int, index: int) -> None:
        if self._made[file_index][index]:
            return
        tensor = self._layouts[file_index].tensors[index]
        out = self._bytes(file_index, self._layouts[file_index].offsets[index], tensor.n_bytes)
        at = 0
        for job in self._jobs_of(tensor):
            data = np.ascontiguousarray(job()).reshape(-1).view(np.uint8)
            if at + data.size > tensor.n_bytes:
                raise ValueError(f"{tensor.name}: its jobs gave more bytes than its type and shape need")
            out[at : at + data.size] = data
            at += data.size
        if at != tensor.n_bytes:
            raise ValueError(f"{tensor.name}: its jobs gave {at} bytes, its type and shape need {tensor.n_bytes}")
        self._made[file_index][index] = True
