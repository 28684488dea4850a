"""How late this process is: how long after its time a timer of the event loop fires.

That is what everything waits that comes in here, be it that the process has too much to do or that
others have the processor. Clients wait for an answer no longer than they have been told to
(librdkafka for a heartbeat: until the next is due), so that they are told to come less often by a
process that is late. Called by the router's process.
"""

import asyncio
from collections.abc import Callable
from typing import Final

PULSE_S: Final = 0.25
_WEIGHT: Final = 0.2
"""Of the newest measurement in the mean: a single long turn counts for little, and a second of them
for most of it."""


class LoopDelayMonitor:
    """Measures from its beginning until `close`; `report` gets the mean in ms with every pulse."""

    def __init__(self, loop: asyncio.AbstractEventLoop, report: Callable[[int], None]) -> None:
        self._loop = loop
        self._report = report
        self._mean_ms = 0.0
        self._due = loop.time() + PULSE_S
        self._timer = loop.call_at(self._due, self._measure)

    def close(self) -> None:
        """The process ends."""
        self._timer.cancel()

    def _measure(self) -> None:
        now = self._loop.time()
        loop_delay_ms = 1000 * max(0.0, now - self._due)
        self._mean_ms += _WEIGHT * (loop_delay_ms - self._mean_ms)
        self._due = now + PULSE_S
        self._timer = self._loop.call_at(self._due, self._measure)
        self._report(int(self._mean_ms))
