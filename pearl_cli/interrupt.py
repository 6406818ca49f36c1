"""Ctrl-C while a reply is being made: the first press asks it to stop, the second leaves the program."""

from __future__ import annotations

import signal
import threading
from types import FrameType


class Interrupt:
    """A context in which SIGINT sets a flag instead of raising, so that nothing is torn in the middle of an update.

    `is_set()` is polled by the engine between tokens and layers. A second press raises KeyboardInterrupt. Outside
    the main thread, where Python allows no handlers, the flag simply stays unset.
    """

    def __init__(self) -> None:
        self._event = threading.Event()
        self._previous: object = None

    def is_set(self) -> bool:
        return self._event.is_set()

    def _on_signal(self, _signum: int, _frame: FrameType | None) -> None:
        if self._event.is_set():
            raise KeyboardInterrupt
        self._event.set()

    def __enter__(self) -> Interrupt:
        self._event.clear()
        if threading.current_thread() is threading.main_thread():
            self._previous = signal.signal(signal.SIGINT, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        if self._previous is not None:
            signal.signal(signal.SIGINT, self._previous)  # type: ignore[arg-type]  # the value signal() itself returned
            self._previous = None
