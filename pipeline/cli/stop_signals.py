"""SIGTERM and Ctrl-C for commands that run until they are stopped.

The first signal lets the command end after what it does at the moment. The second one ends the
process at once: jobs are exactly once whenever they are killed, so that loses time and nothing
else. A thread reads the signals, as the main thread may be in a call of librdkafka that does not
return: no handler in Python would run then.
"""

import os
import signal
from threading import Event, Thread
from typing import Any, Final, Self

_NUMBERS: Final = (signal.SIGINT, signal.SIGTERM)


class StopSignals:
    """Handles the signals within `with`, in the main thread; `stop` is set by the first one."""

    def __init__(self, ends_after: str) -> None:
        """`ends_after` says to people what is still done: "the current plan"."""
        self.stop = Event()
        self._ends_after = ends_after
        self._number = 0
        self._handlers_before: list[Any] = []
        self._wakeup_before = -1
        self._writing = -1
        self._thread: Thread | None = None

    def __enter__(self) -> Self:
        reading, self._writing = os.pipe()
        os.set_blocking(self._writing, False)
        self._thread = Thread(target=self._watch, args=(reading,), daemon=True)
        self._thread.start()
        # Before the handlers: the interpreter writes the number of each signal that has one.
        self._wakeup_before = signal.set_wakeup_fd(self._writing, warn_on_full_buffer=False)
        self._handlers_before = [signal.signal(number, lambda *_: None) for number in _NUMBERS]
        return self

    def __exit__(self, *_error: object) -> None:
        for number, handler in zip(_NUMBERS, self._handlers_before, strict=True):
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup_before)
        os.close(self._writing)
        if self._thread is not None:
            self._thread.join()

    def exit_code(self, *, is_endless: bool) -> int:
        """128 and the signal's number, as shells have it; 0 without a signal, or where SIGTERM is
        the usual end of a command that runs for ever."""
        if self._number == 0 or (is_endless and self._number == signal.SIGTERM):
            return 0
        return 128 + self._number

    def _watch(self, reading: int) -> None:
        """Until the other end of the pipe is closed."""
        while written := os.read(reading, 1):
            if written[0] not in _NUMBERS:
                continue
            if self.stop.is_set():
                os._exit(128 + written[0])
            self._number = written[0]
            text = f"\nEnding after {self._ends_after}; the same again ends now.\n"
            os.write(2, text.encode())
            self.stop.set()
        os.close(reading)
