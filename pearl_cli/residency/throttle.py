"""Make reads as slow as a slower tier: a serial link of so many bytes a second."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class Throttle:
    """Readers share one link: a read of n bytes occupies it for n / rate seconds, in order of arrival."""

    def __init__(
        self,
        bytes_per_s: float,
        now: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        if bytes_per_s <= 0:
            raise ValueError(f"a link needs a positive rate, got {bytes_per_s}")
        self.bytes_per_s = bytes_per_s
        self._now = now
        self._sleep = sleep
        self._lock = threading.Lock()
        self._link_free_at = 0.0

    def reserve(self, n_bytes: int) -> float:
        """Book the link for `n_bytes` and return the time at which they have passed."""
        with self._lock:
            self._link_free_at = max(self._now(), self._link_free_at) + n_bytes / self.bytes_per_s
            return self._link_free_at

    def wait_until(self, moment: float) -> None:
        remaining = moment - self._now()
        if remaining > 0:
            self._sleep(remaining)
