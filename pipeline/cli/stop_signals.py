"""SIGTERM and Ctrl-C for commands that run until they are stopped.

The first signal lets the command end after what it does at the moment. The second one ends the
process at once: jobs are exactly once whenever they are killed, so that loses time and nothing
else.
"""

import os
import signal
from threading import Event
from types import FrameType
from typing import Any, Final, Self

_NUMBERS: Final = (signal.SIGINT, signal.SIGTERM)


class StopSignals:
    """Handles the signals within `with`, in the main thread; `stop` is set by the first one."""

    def __init__(self, ends_after: str) -> None:
        """`ends_after` says to people what is still done: "the current plan"."""
        self.stop = Event()
        self._ends_after = ends_after
        self._number = 0
        self._before: list[Any] = []

    def __enter__(self) -> Self:
        self._before = [signal.signal(number, self._on_signal) for number in _NUMBERS]
        return self

    def __exit__(self, *_error: object) -> None:
        for number, handler in zip(_NUMBERS, self._before, strict=True):
            signal.signal(number, handler)

    def exit_code(self, *, is_endless: bool) -> int:
        """128 and the signal's number, as shells have it; 0 without a signal, or where SIGTERM is
        the usual end of a command that runs for ever."""
        if self._number == 0 or (is_endless and self._number == signal.SIGTERM):
            return 0
        return 128 + self._number

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if self.stop.is_set():
            os._exit(128 + number)
        self._number = number
        self.stop.set()
        # Not print: the signal may have come within a write to the same stream.
        os.write(2, f"\nEnding after {self._ends_after}; the same again ends now.\n".encode())
