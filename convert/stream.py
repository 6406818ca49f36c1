"""Run many small jobs on a few threads and hand their results over in the order they were asked for, holding only a
few at a time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Job = Callable[[], Bytes]


def in_order(jobs: Iterable[Job], threads: int) -> Iterator[Bytes]:
    """Yield each job's bytes in order; at most `threads` + 2 jobs are started and not yet taken.

    A job's exception is raised in its turn.
    """
    window = threads + 2
    waiting: deque[Future[Bytes]] = deque()
    pool = ThreadPoolExecutor(max_workers=threads, thread_name_prefix="convert")
    try:
        for job in jobs:
            waiting.append(pool.submit(job))
            if len(waiting) >= window:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        for future in waiting:
            future.cancel()
        pool.shutdown(wait=True)
