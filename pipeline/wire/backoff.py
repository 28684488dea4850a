"""How long a reader keeps trying: pauses that grow, and an end."""

import time
from typing import Final

from odradek.pipeline.errors import PipelineError

PAUSE_FIRST_S: Final = 0.05
PAUSE_MAX_S: Final = 1.0
"""Kafka's defaults of retry.backoff.ms and retry.backoff.max.ms are 100 ms and 1 s."""


class Backoff:
    """The pauses between tries. The time runs from the last success on."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._deadline_s = time.monotonic() + timeout_s
        self._pause_s = PAUSE_FIRST_S

    def succeeded(self) -> None:
        """Something worked: all of the time is there again."""
        self._deadline_s = time.monotonic() + self._timeout_s
        self._pause_s = PAUSE_FIRST_S

    def pause(self, what_failed: str) -> None:
        """Wait before the next try. Raises PipelineError with what failed if the time is over."""
        left_s = self._deadline_s - time.monotonic()
        if left_s <= 0:
            raise PipelineError(f"{what_failed} (tried for {self._timeout_s:g} s)")
        time.sleep(min(self._pause_s, left_s))
        self._pause_s = min(self._pause_s * 2, PAUSE_MAX_S)
