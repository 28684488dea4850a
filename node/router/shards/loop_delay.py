"""Measures the delay of the event loop: how late its timers fire.

Every incoming request waits that long, because this process is busy or others use the CPU. Members
of an overloaded broker get a longer heartbeat interval, because a client gives up on a heartbeat
after a while (librdkafka: when the next one is due). Used by process.py.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from odradek.node.metrics.histogram import DurationHistogram

PULSE_S: Final = 0.25
_WEIGHT: Final = 0.2
"""The weight of a measurement in the moving average: one long turn of the loop counts for little,
a second of them for most of it."""


class LoopDelayMonitor:
    """Measures until `close`; `report` gets the average in ms after each measurement."""

    def __init__(self, loop: asyncio.AbstractEventLoop, report: Callable[[int], None]) -> None:
        self._loop = loop
        self._report = report
        self._mean_ms = 0.0
        self.histogram = DurationHistogram()
        self._due = loop.time() + PULSE_S
        self._timer = loop.call_at(self._due, self._measure)

    def close(self) -> None:
        """Stop."""
        self._timer.cancel()

    def _measure(self) -> None:
        now = self._loop.time()
        loop_delay_ms = 1000 * max(0.0, now - self._due)
        self.histogram.observe(int(1e6 * loop_delay_ms))
        self._mean_ms += _WEIGHT * (loop_delay_ms - self._mean_ms)
        self._due = now + PULSE_S
        self._timer = self._loop.call_at(self._due, self._measure)
        self._report(int(self._mean_ms))
