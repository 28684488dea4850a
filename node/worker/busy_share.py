"""How busy this process is: the part of the time that it uses a processor."""

from collections.abc import Callable
from typing import Final

WINDOW_S: Final = 0.25
"""What a share is about, at least."""


class BusyShare:
    """`used_s` tells the processor time used since some moment, in seconds."""

    def __init__(self, used_s: Callable[[], float], window_s: float = WINDOW_S) -> None:
        self._used_s = used_s
        self._window_s = window_s
        self._began_s = self._used_before_s = 0.0
        self._share = 0.0

    def of_last_window(self, now_s: float) -> float:
        """The share in the last window that was complete. A window that is much too long, because
        nobody asked, counts for nothing."""
        elapsed_s = now_s - self._began_s
        if elapsed_s >= self._window_s:
            used_s = self._used_s()
            is_recent = elapsed_s < 2 * self._window_s
            self._share = (used_s - self._used_before_s) / elapsed_s if is_recent else 0.0
            self._began_s, self._used_before_s = now_s, used_s
        return self._share
